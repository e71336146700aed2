"""Divided models on NCCL, one process for each GPU, train as whole ones do on one GPU."""

from __future__ import annotations

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


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes(count: int) -> None:
    """Values, dropout, mixed precision and CUDA graphs; arrays that are whole stay equal."""
    if count > torch.cuda.device_count():
        pytest.skip(f"needs {count} GPUs")
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count))
    program = str(Path(__file__).parent / "tensor_parallel_program.py")
    done = subprocess.run(
        [sys.executable, *launcher, program, str(count)],
        capture_output=True,
        text=True,
        env=first_on_path(ROOT) | {"OMP_NUM_THREADS": "1"},
        timeout=580,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(count):
        assert f"rank {rank} of {count}: " in done.stdout
