"""`fit` over a mesh of GPUs, and the demo on two of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import first_on_path

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]
ROOT = Path(__file__).parents[2]


def launched(count: int, *program: str) -> str:
    """Run a program in so many processes; return what they print."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count))
    done = subprocess.run(
        [sys.executable, *launcher, *program],
        capture_output=True,
        text=True,
        env=first_on_path(ROOT) | {"OMP_NUM_THREADS": "1", "META_PROGRESS": "off"},
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_runs(count: int, tmp_path: Path) -> None:
    if count > torch.cuda.device_count():
        pytest.skip(f"needs {count} GPUs")
    program = str(Path(__file__).parent / "fit_program.py")
    said = launched(count, program, str(count), "cuda", str(tmp_path / "kept"))
    for rank in range(count):
        assert f"rank {rank} of {count}: 3 runs agree" in said


def test_demo() -> None:
    demo = ("-m", "meta", "demo", "--json", "--epochs", "2", "--device", "cuda")
    report = json.loads(launched(2, *demo))
    assert report["settings"]["processes"] == 2 and report["settings"]["device"] == "cuda:0"
    assert report["accuracy"] > 0.9 and report["reloaded"]["identical"]
    assert any(name.startswith("nccl.") for name in report["kernels"])
