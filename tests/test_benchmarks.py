"""The benchmarks start, say what they take, and refuse what would spoil a page."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import first_on_path

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(p.name for p in (ROOT / "benchmarks").glob("*.py") if "def main" in p.read_text())


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / arguments[0]), *arguments[1:]]
    environment = first_on_path(ROOT)
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_help(script: str, tmp_path: Path) -> None:
    done = run(tmp_path, script, "--help")
    assert done.returncode == 0 and f"python benchmarks/{script}" in done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("kernels_cpu.py", "--filter", "relu"),
        ("models_cpu.py", "--models", "lenet"),
        ("models_cuda.py", "--rows", "bert-infer1-fp16"),
        ("models_cuda.py", "--tiny"),
        ("dynamo_cuda.py", "--rows", "strangers"),
        ("train_cpu.py", "--models", "digits"),
    ],
    ids=" ".join,
)
def test_a_page_is_written_whole(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = run(tmp_path, *arguments, "--markdown")
    assert done.returncode == 2 and "--markdown is for all" in done.stderr


def test_levels_follow_from_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    levels = importlib.import_module("levels")
    table = json.loads(levels.TABLE.read_text("utf-8"))
    assert levels.as_text(table) == levels.TABLE.read_text("utf-8")
    assert levels.decided(table["levels"], table["measurements"]) == table["levels"]
    us = {"cudnn": 9.0, "torch": 10.0, "tvm": 20.0}
    made = levels.decided(table["levels"], [{"operator": "max_pool2d", "us": us}])
    assert made["cudnn"]["max_pool2d"] == {"cuda": 15} and made["torch"]["max_pool2d"] == {
        "cuda": 14
    }
    again = levels.decided(made, [{"operator": "max_pool2d", "us": {**us, "tvm": 8.0}}])
    assert again == table["levels"]


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    "script",
    [
        "kernels_cuda.py",
        "levels.py",
        "models_cuda.py",
        "dynamo_cuda.py",
        "step_cuda.py",
        "tuning.py",
    ],
)
def test_without_a_gpu(script: str, tmp_path: Path) -> None:
    done = run(tmp_path, script)
    assert done.returncode == 2 and done.stderr.endswith("error: no CUDA device\n")
