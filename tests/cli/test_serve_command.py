"""`python -m meta serve`: what keeps it from starting. tests/language/test_server.py starts one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from meta.cli.main import main
from tests.language.folders import written


def test_a_folder_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(tmp_path)]) == 2
    assert "this file of settings cannot be read" in capsys.readouterr().err


def test_without_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", "folder"]) == 2
    assert "pip install 'meta-operators[serve]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "needs the model's tokenizer"),
        (["--length", "600"], "1 <= length <= 512"),
        (["--length", "64", "--blocks", "3"], "more blocks than there are"),
        (["--quantize", "int3"], "int3"),
    ],
)
def test_a_model_that_cannot_be_served(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, "gpt2")
    assert main(["serve", str(tmp_path), "--device", "cpu", *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        ["--rows", "0"],
        ["--port", "a"],
        ["--port", "65536"],
        ["--time-limit", "1y"],
        ["--body", "-1"],
    ],
)
def test_options_that_are_none(options: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "folder", *options])
    assert ended.value.code == 2
