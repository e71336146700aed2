"""``python -m meta selftest``: the matrix of operators, dialects and dtypes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from meta.base.device import CPU
from meta.base.errors import ArgumentError
from meta.base.registry import OPERATORS
from meta.cli.main import main
from meta.dialect import Dialect
from meta.testing import F, I, OpCase, sample
from meta.testing.matrix import FAIL, NO_KERNEL, PASS, REFUSED, Outcome, cells, outcomes
from meta.testing.records import cases_folder, load_cases
from meta.testing.selftest import SelftestPlan
from meta.testing.shapes import SHAPES
from meta.testing.workers import Lost, in_processes
from tests.registered import remove_dialects

RELU = OpCase(
    "relu",
    samples=[
        sample(F(2, 3)),
        sample(I(4, low=-3, high=4, dtype="int32")),
        sample(I(5, low=-3, high=4, dtype="int32")),
    ],
    oracle=torch.relu,
    dtypes=("float32", "float64"),
)


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    status = main(["selftest", "--device", "cpu", *argv])
    return status, capsys.readouterr().out


@pytest.fixture
def acme() -> Iterator[Dialect]:
    """A dialect that is wrong in float32 and refuses float64, forgotten after the test."""
    dialect = Dialect("acme", devices=("cpu",))

    def why_not(call: Any) -> str | None:
        return "no doubles here" if call.args[0].dtype == "float64" else None

    @dialect.kernel(OPERATORS["relu"], when=why_not)
    def relu(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.is_floating_point() else torch.relu(x)

    yield dialect
    remove_dialects(dialect)


def test_states_of_cells(acme: Dialect) -> None:
    found = {c.dtype: c for c in cells(outcomes([RELU], "acme", CPU, most=2))}
    assert {dtype: c.state for dtype, c in found.items()} == {
        "float32": FAIL,
        "float64": REFUSED,
        "int32": PASS,
    }
    assert found["int32"].passed == 2
    assert found["float64"].refused == {"no doubles here": 1}
    (reason,) = found["float32"].failed
    assert reason.startswith("relu(F[2, 3]) in float32: AssertionError")
    every = {c.dtype: c for c in cells(outcomes([RELU], "acme", CPU, most=0))}
    assert every["int32"].passed == 2
    assert every["float64"].refused == {"no doubles here": 1 + len(SHAPES)}
    assert any("F[2, 3] as [17]" in reason for reason in every["float32"].failed)
    few = list(outcomes([RELU], "acme", CPU, dtypes=["int32"]))
    assert few == [Outcome("relu", "acme", "int32", PASS)]


def test_some_operators(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--op", "negative", "--op", "reshape", "--dialect", "torch", "-j", "0")
    status, text = shown(capsys, *asked, "--json")
    record = json.loads(text)
    assert status == 0 and record["device"] == "cpu"
    states = {(c["op"], c["dialect"], c["dtype"]): c["state"] for c in record["cells"]}
    assert set(states.values()) == {PASS}
    assert {d for o, b, d in states if (o, b) == ("negative", "torch")} >= {"bfloat16", "int32"}
    assert ("reshape", NO_KERNEL, "float32") in states
    status, text = shown(capsys, *asked)
    assert status == 0 and "0 FAIL." in text
    row = next(line for line in text.splitlines() if line.startswith("negative"))
    assert "f16 bf16 f32 f64" in row


CASES = """
import torch
from meta.testing import F, OpCase, sample
CASES = [OpCase("relu", [sample(F(3))], torch.relu, dtypes=("float32", "float64"))]
"""


def test_what_fails(acme: Dialect, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cases_of_selftest.py").write_text(CASES)
    asked = ("--cases", str(tmp_path), "--dialect", "acme", "--dialect", "torch", "-j", "0")
    status, text = shown(capsys, *asked)
    assert (
        status == 1
        and "1 operators, 4 cells (operator x dialect x dtype): 2 pass, 1 refused, 1 FAIL." in text
    )
    (row,) = (line for line in text.splitlines() if line.startswith("relu"))
    assert row.split("  ")[-2:] == ["(f64) FAIL f32", "f32 f64"]
    assert "no doubles here: relu (f64)" in text and "acme.relu float32: relu(F[3])" in text
    status, page = shown(capsys, *asked, "--markdown")
    assert status == 1 and "| `relu` | (f64) FAIL f32 | f32 f64 |" in page
    assert page.index("1 FAIL.") < page.index("## FAIL") < page.index("## The table")
    assert "## acme refuses\n\n- no doubles here: relu (f64)" in page


def test_where_cases_are(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="--cases"):
        cases_folder(str(tmp_path))
    assert any(case.op == "softmax" for case in load_cases(cases_folder()))
    (tmp_path / "elementwise.py").write_text(CASES)
    with pytest.raises(ArgumentError, match="another file of cases named elementwise"):
        load_cases(tmp_path)
    (tmp_path / "elementwise.py").rename(tmp_path / "none_of_selftest.py")
    (tmp_path / "none_of_selftest.py").write_text("")
    with pytest.raises(ArgumentError, match="defines no CASES"):
        load_cases(tmp_path)


SERVE = """
import os, time
def serve(connection, word):
    connection.send(None)
    while True:
        try:
            unit = connection.recv()
        except EOFError:
            return
        if unit == "dies":
            os._exit(3)
        if unit == "hangs":
            time.sleep(1000)
        connection.send((word + unit, unit != "ends"))
        if unit == "ends":
            return
"""


def test_a_unit_that_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "light_serve_of_selftest.py").write_text(SERVE)
    monkeypatch.syspath_prepend(tmp_path)
    import light_serve_of_selftest as light

    units = ["a", "dies", "b", "hangs", "ends", "c"]
    answers = dict(in_processes(units, light.serve, ("<",), jobs=2, timeout=12.0))
    assert answers == {
        **{unit: f"<{unit}" for unit in ("a", "b", "ends", "c")},
        "dies": Lost("the process ended with status 3"),
        "hangs": Lost("no answer within 12 s"),
    }
    del sys.modules["light_serve_of_selftest"]


def test_an_interrupt_shows_what_is_known(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(plan: SelftestPlan, units: list[Any], *_: object) -> Iterator[Any]:
        yield units[0], [Outcome("relu", "torch", "float32", PASS)]
        raise KeyboardInterrupt

    monkeypatch.setattr("meta.cli.selftest.selftest", stopped)
    assert main(["selftest", "--device", "cpu", "--op", "relu"]) == 130
    out, err = capsys.readouterr()
    assert "1 operators, 1 cells" in out and ": 1 pass" in out and "interrupted after 1 of" in err


@pytest.mark.slow
def test_processes(capsys: pytest.CaptureFixture[str]) -> None:
    status, text = shown(capsys, "--op", "relu", "--op", "reshape", "-j", "2")
    assert status == 0 and "0 FAIL." in text


def test_wrong_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    no_unit = ["--op", "relu", "--dialect", "cublas"]
    for wrong in (
        ["--op", "relo"], ["--dialect", "trch"], ["--dtype", "float7"], ["-j", "-1"], no_unit,
    ):  # fmt: skip
        assert main(["selftest", "--device", "cpu", *wrong]) == 2
        assert "error" in capsys.readouterr().err


def test_without_a_device_it_is_the_gpu_or_else_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--op", "negative", "--dialect", "torch", "--dtype", "float32", "-j", "0", "--json"]
    assert main(["selftest", *asked]) == 0
    device = json.loads(capsys.readouterr().out)["device"]
    assert device == ("cuda:0" if torch.cuda.is_available() else "cpu")
