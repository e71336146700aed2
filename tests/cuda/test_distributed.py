"""Programs on NCCL, one process for each GPU: collectives, training steps that are one CUDA graph,
divided models beside whole ones on one GPU, `fit` over a mesh, the demo; and processes that end.
"""

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
PROGRAMS = {
    "distributed_program.py": "rank {rank} of {count}: ",
    "tensor_parallel_program.py": "rank {rank} of {count}: ",
    "fit_program.py": "rank {rank} of {count}: 3 runs agree",
}
"""What each rank prints at the end."""


def launched(count: int, *program: str) -> str:
    """Run a program in so many processes; return what they print."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count))
    done = subprocess.run(
        [sys.executable, *launcher, *program],
        capture_output=True,
        text=True,
        env=first_on_path(ROOT) | {"OMP_NUM_THREADS": "1", "META_PROGRESS": "off"},
        timeout=580,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes(count: int, program: str, tmp_path: Path) -> None:
    if count > torch.cuda.device_count():
        pytest.skip(f"needs {count} GPUs")
    more = ("cuda", str(tmp_path / "kept")) if program == "fit_program.py" else ()
    said = launched(count, str(Path(__file__).parent / program), str(count), *more)
    for rank in range(count):
        assert PROGRAMS[program].format(rank=rank, count=count) in said


def test_demo() -> None:
    demo = ("-m", "meta", "demo", "--json", "--epochs", "2", "--device", "cuda")
    report = json.loads(launched(2, *demo))
    assert report["settings"]["processes"] == 2 and report["settings"]["device"] == "cuda:0"
    assert report["accuracy"] > 0.9 and report["reloaded"]["identical"]
    assert any(name.startswith("nccl.") for name in report["kernels"])
