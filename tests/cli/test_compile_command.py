"""``python -m meta compile`` and ``python -m meta profile``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import meta
from meta.cli.main import main
from tests.vm.export.native import Library

SOURCE = """
import meta
from meta import op
from meta.model import Model, trace


class Scale(Model):
    def build(self):
        self.w = meta.array([[1.0, 2.0], [3.0, 4.0]])

    @trace
    def forward(self, x):
        return op.relu(op.matmul(x, self.w))


class Sized(Model):
    def build(self, size):
        pass


@trace
def double(x, y):
    return x + y


instance = Scale()
number = 3
"""
PROGRAM = """
func @main(%x: float32[2, 3], %i: int64[2]) -> float32[2, 3] {
  %y: float32[2, 3] = take(%x, %i, axis=0)
  return %y
}
"""


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "my_models.py").write_text(SOURCE, "utf-8")
    (tmp_path / "take.meta").write_text(PROGRAM, "utf-8")
    (tmp_path / "broken.py").write_text("import no_such_thing_at_all", "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with meta.dialect.only("torch"):
        yield
    sys.modules.pop("my_models", None)


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("target", ["my_models.py:Scale", "my_models:Scale", "my_models:instance"])
def test_compile_a_model(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = output(capsys, "compile", target, "--input", "float32[3, 2]")
    assert found["inputs"] == ["float32[3, 2]"] and found["device"] == "cpu"
    assert found["peak_bytes"] >= found["arena_bytes"] and found["workspace_bytes"] == 0
    assert found["cuda_graph"] == "no CUDA graph: the device is cpu"
    assert found["kernels"] == {"torch.matmul": 1, "torch.relu": 1}
    assert [i["operator"] for i in found["instructions"]] == ["matmul", "relu"]
    assert "my_models.py:" in found["instructions"][0]["line"]
    assert {"infer_type", "dispatch", "plan_memory"} <= {p["name"] for p in found["passes"]}
    assert main(["compile", target, "--input", "float32[3,2]"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{target}(float32[3, 2]) on cpu")
    assert "torch.matmul" in shown and "fold_constant" in shown and "bytes" in shown


def test_levels_and_several_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["my_models:double", "--input", "float32[n]", "float32[n]", "--opt-level", "0"]
    found = output(capsys, "compile", *arguments)
    assert [p["name"] for p in found["passes"]] == ["infer_type", "dispatch", "configure"]
    assert found["inputs"] == ["float32[n]"] * 2


def test_inputs_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["my_models:double", "--input", "float32[2]", "--input", "float32[2]"]
    assert output(capsys, "compile", *arguments)["inputs"] == ["float32[2]"] * 2


@pytest.mark.parametrize("target", [":x", "../up:x", "my_models:", "a:b:c", "a..b:x", "", ":", "."])
def test_targets_that_name_nothing(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", target]) == 2
    assert "names nothing to compile" in capsys.readouterr().err


def test_program_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "compile", "take.meta")["kernels"] == {"torch.take": 1}
    found = output(capsys, "profile", "take.meta", "--repeat", "3")
    assert found["repeat"] == 3 and found["inputs"] == ["float32[2, 3]", "int64[2]"]
    assert found["instructions"][0]["operator"] == "take"


def test_the_compiled_program_is_saved(tmp_path: Path) -> None:
    arguments = ["my_models:Scale", "--input", "float32[1, 2]", "--output", str(tmp_path / "out")]
    assert main(["compile", *arguments]) == 0
    run = meta.vm.load(tmp_path / "out")
    assert run(meta.array([[1.0, -1.0]])).numpy().tolist() == [[0.0, 0.0]]


def test_the_compiled_program_becomes_a_library(tmp_path: Path) -> None:
    arguments = ["my_models:Scale", "--input", "float32[1, 2]", "--export", "scale.so"]
    assert main(["compile", *arguments]) == 0
    run = Library(tmp_path / "scale.so").run([torch.tensor([[1.0, -3.0]])])
    assert run[0].tolist() == [[0.0, 0.0]]


def test_pages(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["my_models.py:Scale", "--input", "float32[3,2]", "--html", "page.html"]
    for command, times in (("compile", False), ("profile", True)):
        assert main([command, *arguments]) == 0
        page = Path("page.html").read_text("utf-8")
        assert page.startswith("<!doctype html>") and "<b>matmul</b>" in page
        assert ("No times" in page) != times
    assert main(["compile", *arguments[:-1], "absent/page.html"]) == 2
    assert "absent/page.html cannot be written" in capsys.readouterr().err


def test_profile_with_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["my_models.py:Scale", "--input", "float32[3,2]", "--trace", "out.json"]
    assert main(["profile", *arguments]) == 0
    shown = capsys.readouterr().out
    assert "2 instructions on cpu" in shown and "torch.matmul" in shown
    events = json.loads(Path("out.json").read_text("utf-8"))["traceEvents"]
    assert [e["name"] for e in events if e["ph"] == "X"] == ["matmul", "relu"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["my_models"], "module:Name, file.py:Name or file.meta"),
        (["my_models:Scal"], "did you mean 'Scale'"),
        (["my_modls:Scale"], "there is no module 'my_modls'"),
        (["nowhere.py:Scale"], "nowhere.py"),
        (["nowhere.meta"], "nowhere.meta"),
        (["my_models:number"], "this cannot be compiled"),
        (["my_models:Scale", "--input", "float33[2]"], "float33"),
        (["my_models:Scale", "--input", "(float32[2],)"], "an input is a tensor"),
        (["my_models:Scale", "--input", "float32[3, 5]"], "matmul"),
        (["my_models:Scale"], "missing a required argument"),
        (["my_models:Sized"], "Sized: missing a required argument: 'size'"),
        (["take.meta", "--input", "float32[2]"], "leave --input out"),
        (["my_models:Scale", "--device", "gpu"], "gpu"),
    ],
)
@pytest.mark.parametrize("command", ["compile", "profile"])
def test_mistakes(
    command: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and err.startswith(f"python -m meta {command}: error: ")


def test_profile_needs_extents(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "my_models:double", "--input", "float32[n]", "float32[n]"]) == 2
    assert "a static shape is needed" in capsys.readouterr().err


def test_a_fault_of_the_users_module_is_the_users() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_thing_at_all"):
        main(["compile", "broken:x"])


def test_a_wrong_level(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "take.meta", "--opt-level", "9"]) == 2
    assert "opt_level from 0 to 3" in capsys.readouterr().err
