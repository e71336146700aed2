"""``python -m tools.client_models``: architectures of transformers, torchvision and timm come in
right, are compiled right and give torch's gradients; ONNX files of wheels, which the tests make,
give onnxruntime's results; and the command says so.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from tools.client_models import __main__ as command
from tools.client_models import libraries, report
from tools.client_models.measure import STAGES, Outcome, Row, measure
from tools.client_models.onnx_row import OnnxRow, declared_inputs
from tools.client_models.onnx_stages import distance
from tools.client_models.onnx_table import ROWS as FILES
from tools.client_models.torch_row import TorchRow
from tools.client_models.transformers_rows import ROWS


def named(library: str) -> list[Any]:
    """Return the rows of a library, those that are not quick marked as slow; none where it is not
    installed.
    """
    try:
        rows: Any = libraries.rows(library)
    except ImportError:
        return []
    marks = {n: () if row.quick else pytest.mark.slow for n, row in rows.items()}
    return [pytest.param(library, n, marks=m) for n, m in marks.items()]


TORCH = ("transformers", "torchvision", "timm")


@pytest.mark.parametrize("library,name", [p for library in TORCH for p in named(library)])
@pytest.mark.long
def test_architectures(library: str, name: str) -> None:
    row: Any = libraries.rows(library)[name]
    outcome = measure(name, row, None, STAGES)
    assert outcome.passes, outcome.failed
    assert (outcome.refused is None) == (row.refused is None)
    assert outcome.refused is not None or set(outcome.errors) == set(STAGES)


class Exported(nn.Module):
    """Something else when it is exported."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if torch.compiler.is_exporting() else x


def row(**options: Any) -> TorchRow:
    return TorchRow(
        lambda: nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)),
        lambda g: {"input": torch.randn(4, 3, generator=g)},
        **options,
    )


def test_a_wrong_result_fails() -> None:
    outcome = measure("one", row(), "torch", ["eager", "gradients"])
    assert outcome.passes and set(outcome.errors) == {"eager", "gradients"}
    wrong = TorchRow(Exported, lambda g: {"x": torch.randn(4, 3, generator=g)})
    assert "eager" in measure("wrong", wrong, "torch", ["eager"]).failed


class Deciding(nn.Module):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return input if input.sum() > 0 else -input


def test_a_module_that_torch_refuses() -> None:
    inputs = row().inputs
    known = TorchRow(Deciding, inputs, refused="data-dependent", cause="an if")
    assert measure("known", known, "torch", ["eager"]).refused == "import: an if"
    assert "import" in measure("unknown", TorchRow(Deciding, inputs), "torch", ["eager"]).failed


GRAPH = "g (float[n, 4] x, int64[m] i) => (float[n, 4] y, int64[m] j) { y = Neg(x) j = Neg(i) }"
MODEL = '<ir_version: 8, opset_import: ["" : 17]> ' + GRAPH
FILE = OnnxRow(
    package="small",
    version="1.0",
    path="small/model.onnx",
    sizes={"m": (2, 5)},
    ranges={"i": (3, 4)},
)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache folder that has the wheel of a package."""
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / "small-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("small/model.onnx", onnx.parser.parse_model(MODEL).SerializeToString())
    return tmp_path


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], None]:
    """Lets the command have these libraries only, in this process."""

    def set_libraries(own: dict[str, Any]) -> None:
        monkeypatch.setattr(command, "LIBRARIES", own)
        monkeypatch.setattr(libraries, "LIBRARIES", own)
        monkeypatch.setattr(command, "Limits", lambda *_: None)
        monkeypatch.setattr(libraries, "rows", libraries.rows.__wrapped__)
        monkeypatch.setattr(command, "rows", libraries.rows)

    return set_libraries


def test_the_command(known: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def missing(_: Path | None) -> dict[str, Row]:
        raise ImportError("no timm here")

    known(
        {
            "transformers": lambda _: {"one": row(), "bad": TorchRow(Deciding, row().inputs)},
            "timm": missing,
        }
    )
    words = ["--stage", "eager", "--dialect", "torch"]
    assert command.main([*words, "--filter", "one"]) == 0
    shown = capsys.readouterr().out
    assert "1 of 1 pass" in shown and "timm is skipped: no timm here" in shown
    assert command.main([*words, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [m["name"] for m in found["models"]] == ["one", "bad"]
    assert "import" in found["models"][1]["failed"]
    assert command.main([*words, "--filter", "no such model"]) == 2


def test_the_command_for_files(
    known: Any, cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    known({"onnx": libraries.LIBRARIES["onnx"]})
    monkeypatch.setattr("tools.client_models.onnx_table.ROWS", (FILE,))
    assert command.main(["--json"]) == 2
    assert "--cache" in json.loads(capsys.readouterr().out)["skipped"]["onnx"]
    assert command.main(["--cache", str(cache), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["models"]
    facts = found["facts"]
    assert not found["failed"] and facts["nodes"] == 2 and facts["operators"] == {"Neg": 2}
    assert facts["sizes"] == ["1x4, 2", "3x4, 5"] and set(found["errors"]) == {"eager", "compiled"}
    kept = cache / "results" / "small+model.onnx.json"
    kept.write_text(json.dumps({**found, "failed": {"eager": "as it says"}}))
    page = cache / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    assert command.main(["--cache", str(cache), "--resume", "--page", str(page)]) == 1
    out = capsys.readouterr().out
    assert "as it says" in out and "1 fail: small/model.onnx" in out
    text = page.read_text()
    assert "| small 1.0 | `model.onnx` | 2 | Neg | fails, exact |" in text and "old" not in text
    assert text.startswith("before\n") and text.endswith("\nafter\n")


@pytest.mark.long
def test_a_file_has_a_process_of_its_own(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    key = FILES[0].key  # the processes read the table themselves
    words = ["--library", "onnx", "--filter", key, "--cache", str(cache), "--json"]
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(cache / "wheels"))
    assert command.main(words) == 0
    (found,) = json.loads(capsys.readouterr().out)["models"]
    assert found["name"] == key and "No matching distribution" in found["missing"]
    assert command.main([*words, "--limit", "0"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["models"]
    assert "no answer within 0 s" in found["failed"]["process"]


def test_what_is_missing(cache: Path) -> None:
    file = OnnxRow(package="small", version="1.0", path="small/other.onnx", cache=cache)
    outcome = measure("small", file, None, STAGES)
    assert outcome.missing and "has no small/other.onnx" in outcome.missing and outcome.passes


def test_inputs() -> None:
    model = onnx.parser.parse_model(MODEL)
    assert [i.name for i in declared_inputs(model)] == ["x", "i"] and FILE.is_batched(model)
    first, second = (FILE.inputs(model, run) for run in range(2))
    assert first["x"].shape == (1, 4) and second["x"].shape == (3, 4)
    assert set(first["i"].tolist()) == {3} and first["i"].dtype.name == "int64"


def test_distances() -> None:
    a = np.array([1.0, np.inf, np.nan], np.float32)
    assert distance(a, a) == 0
    assert distance(a, a[::-1].copy()) == float("inf")
    assert distance(a[:1] * 1.5, a[:1]) == 0.5
    assert distance(a.astype("float64"), a) == float("inf")


class Refusing(Row):
    def subject(self, outcome: Outcome, dialect: str | None) -> Any:
        class Subject:
            stages = ("eager",)

            def run(self, stage: str) -> Any:
                raise ValueError("ZipMap: maps are no arrays")

        return Subject()


def test_a_refusal_that_the_table_names() -> None:
    known = measure("maps", Refusing(refused="maps are no arrays", cause="maps"), None, STAGES)
    assert known.passes and known.refused == "import: maps"
    other = measure("maps", Refusing(refused="another reason"), None, STAGES)
    assert other.failed.keys() == {"import"} and "(test_client_models.py:" in other.failed["import"]


def test_the_tables_are_complete() -> None:
    assert len(ROWS) >= 46
    assert len(FILES) >= 40 and len({f.key for f in FILES}) == len(FILES)
    assert all(f.path.endswith(".onnx") for f in FILES)
