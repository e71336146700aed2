"""``python -m meta costs`` and ``python -m meta tune``, with times that are made up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import meta
from meta.base import config
from meta.base.device import CPU
from meta.cli.main import main
from meta.cost import store
from meta.cost.record import key_of
from meta.cost.store import save
from meta.dialect.core import dispatch
from meta.ir.types import TensorType
from tests.cost.fake_costs import cost

PROGRAM = """
func @main(%x: float32[64, 128]) -> float32[64, 128] {
  %y: float32[64, 128] = sort(%x, axis=-1, descending=False)
  return %y
}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "sorted.meta").write_text(PROGRAM, "utf-8")
    monkeypatch.chdir(tmp_path)
    with config.override(
        META_CACHE_DIR=str(tmp_path / "cache"), META_CACHE=True, META_TUNE="cached"
    ):
        store.clear_memory()
        yield tmp_path
    store.clear_memory()


def put_costs() -> None:
    call = meta.op.tanh.call_values((TensorType((4, 8), "float32"),), CPU)
    save(key_of(call, CPU, "eager"), [cost("tvm", 4.0), cost("torch", 2.0)])


def record(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main([*arguments, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_nothing_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["costs"]) == 0
    assert "nothing was measured" in capsys.readouterr().out


def test_a_table_of_candidates(capsys: pytest.CaptureFixture[str]) -> None:
    put_costs()
    assert main(["costs", "tanh"]) == 0
    lines = capsys.readouterr().out.splitlines()
    chosen = next(line for line in lines if "->" in line)
    assert "torch" in chosen
    assert "2.00 us (1.90 to 2.10, 20 samples)" in chosen
    assert record(capsys, "costs", "exp")["races"] == []


def test_an_operator_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["costs", "tahn"]) == 2
    assert "tanh" in capsys.readouterr().err


def test_costs_move_to_another_cache(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put_costs()
    assert record(capsys, "costs", "--export", "all.json")["exported"] == 1
    with config.override(META_CACHE_DIR=str(folder / "other")):
        assert record(capsys, "costs", "--import", "all.json")["imported"] == 1
        assert record(capsys, "costs", "--import", "all.json")["imported"] == 0
        assert len(record(capsys, "costs")["races"]) == 1  # type: ignore[arg-type]
        # On another machine they are kept, and do not count.
        monkeypatch.setattr(store, "environment", lambda device: '{"device": "another"}')
        store.clear_memory()
        assert record(capsys, "costs")["races"] == []


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t[:-10],
        lambda t: "[]",
        lambda t: t.replace('"format": 2', '"format": 1'),
        lambda t: t.replace("4.0", "0.4"),
        lambda t: "[" * 100_000,
    ],
)
def test_damage_is_an_error(folder: Path, capsys: pytest.CaptureFixture[str], change) -> None:
    put_costs()
    assert main(["costs", "--export", "all.json"]) == 0
    file = folder / "all.json"
    file.write_text(change(file.read_text()))
    capsys.readouterr()
    with config.override(META_CACHE_DIR=str(folder / "other")):
        assert main(["costs", "--import", "all.json"]) == 2
        assert not (folder / "other" / "costs").exists()
    assert "Traceback" not in capsys.readouterr().err


def test_tune(capsys: pytest.CaptureFixture[str], measured_by: Any) -> None:
    asked: list[str] = []

    def measure(subjects, device, how):
        for place, subject in enumerate(subjects):
            asked.append(subject.op.name)
            yield place, [cost("tvm", 4.0), cost("torch", 2.0)]

    measured_by(measure)
    call = meta.op.sort.call_values((TensorType((64, 128), "float32"), -1, False), CPU)
    first = dispatch(call).dialect_op
    assert first is not None
    found = record(capsys, "tune", "sorted.meta", "--budget", "1min")
    assert asked == ["sort"]
    changed = [(c["before"], c["after"]) for c in found["changes"]]  # type: ignore[attr-defined]
    assert changed == ([("tvm", "torch")] if first.dialect.name == "tvm" else [])
    assert found["before_us"] > 0 < found["after_us"]  # type: ignore[operator]
    record(capsys, "tune", "sorted.meta")
    assert asked == ["sort"]  # kept
    assert main(["tune", "sorted.meta"]) == 0
    assert "a run:" in capsys.readouterr().out


def test_a_budget_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["tune", "sorted.meta", "--budget", "soon"])
    assert ended.value.code == 2
    assert "a time like 60s" in capsys.readouterr().err
