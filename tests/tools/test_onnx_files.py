"""ONNX files of packages: the command, on wheels that the test makes."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import onnx
import pytest

from tools.onnx_files import __main__ as command
from tools.onnx_files import measure, report
from tools.onnx_files.inputs import declared, is_batched, made
from tools.onnx_files.measure import DIFFERS, EQUAL, NOT_THERE, REFUSED, Outcome, distance, measured
from tools.onnx_files.table import FILES, File

GRAPH = "g (float[n, 4] x, int64[m] i) => (float[n, 4] y, int64[m] j) { y = Neg(x) j = Neg(i) }"
FILE = File("small", "1.0", "small/model.onnx", sizes={"m": (2, 5)}, ranges={"i": (3, 4)})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder that has the wheel of a package, whose file is the only one of the table."""
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + GRAPH)
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / "small-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("small/model.onnx", model.SerializeToString())
    monkeypatch.setattr(command, "FILES", (FILE,))
    monkeypatch.setattr(measure, "FILES", (FILE,))

    def here(self: Any, file: File, path: Path) -> Outcome:
        return measured(file, path, "torch")

    monkeypatch.setattr(command.Measured, "_measured", here)
    return tmp_path


def test_the_table() -> None:
    assert len(FILES) >= 40 and len({f.key for f in FILES}) == len(FILES)
    assert all(f.path.endswith(".onnx") for f in FILES)


def test_the_command(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    assert command.main(["--cache", str(cache), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["result"] == EQUAL and found["nodes"] == 2 and found["operators"] == {"Neg": 2}
    assert found["sizes"] == ["1x4, 2", "3x4, 5"]
    kept = cache / "results" / "small+model.onnx.json"
    kept.write_text(json.dumps({**found, "result": DIFFERS, "reason": "as it says"}))
    page = cache / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    arguments = ["--cache", str(cache), "--resume", "--page", str(page)]
    assert command.main(arguments) == 1
    out = capsys.readouterr().out
    assert "as it says" in out and "1 fail: small/model.onnx" in out
    text = page.read_text()
    assert "| small 1.0 | `model.onnx` | 2 | Neg |" in text and "old" not in text
    assert text.startswith("before\n") and text.endswith("\nafter\n")
    assert command.main(["--cache", str(cache), "--filter", "no such file"]) == 2


def test_what_is_not_there(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = File("small", "1.0", "small/other.onnx")
    monkeypatch.setattr(command, "FILES", (file,))
    options = command.parser().parse_args(["--cache", str(cache)])
    outcome = command.Measured(options)(file)
    assert outcome.result == NOT_THERE and "has no small/other.onnx" in outcome.reason
    assert report.passes(file, outcome)


def test_inputs() -> None:
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + GRAPH)
    assert [i.name for i in declared(model)] == ["x", "i"] and is_batched(FILE, model)
    first, second = (made(FILE, model, run) for run in range(2))
    assert first["x"].shape == (1, 4) and second["x"].shape == (3, 4)
    assert set(first["i"].tolist()) == {3} and first["i"].dtype.name == "int64"


def test_distances() -> None:
    import numpy as np

    a = np.array([1.0, np.inf, np.nan], np.float32)
    assert distance(a, a) == 0
    assert distance(a, a[::-1].copy()) == float("inf")
    assert distance(a[:1] * 1.5, a[:1]) == 0.5
    assert distance(a.astype("float64"), a) == float("inf")


def test_a_refusal_that_the_table_names() -> None:
    file = File("small", "1.0", "small/model.onnx", refused="maps are no arrays")
    assert report.passes(file, Outcome(file.key, REFUSED, "ZipMap: maps are no arrays"))
    assert not report.passes(file, Outcome(file.key, REFUSED, "another reason"))
