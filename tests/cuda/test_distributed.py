"""Programs on NCCL, one process for each GPU: collectives, training steps that are one CUDA graph,
divided models beside whole ones on one GPU, `fit` over a mesh, the demo; and processes that end.

What goes wrong among ranks: no kernel waits for ever, and the others say who is missing. The thread
that watches a process ends it where launched work does not come to its end; see
`meta.distributed.watchdog`. On the CPU: tests/distributed/test_faults.py.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import first_on_path
from tests.distributed.test_faults import report

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]
ROOT = Path(__file__).parents[2]
PROGRAMS = {
    "distributed_program.py": "rank {rank} of {count}: ",
    "tensor_parallel_program.py": "rank {rank} of {count}: ",
    "fit_program.py": "rank {rank} of {count}: 3 runs agree",
    "../interop/torch/ranks_program.py": "rank {rank} of {count}: 4 steps agree",
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


# By fault: what each of two ranks says, and its exit code; None: any but 0.
FAULTS: dict[str, list[tuple[int | None, str]]] = {
    "raises": [(None, "rank 1 raised ZeroDivisionError: mine"), (1, "ZeroDivisionError: mine")],
    "is late": [(None, "rank 1 did not come: it is at"), (None, "rank 1 did not come")],
    "is killed": [(None, "rank 1 is gone"), (-9, "")],
    "leaves": [(None, "rank 1 (has left|is gone)"), (0, "")],
    "other shapes": [
        (0, r"rank 0: all_reduce\(float32\[3\], sum\)\s+rank 1: all_reduce\(float32\[4\], sum\)"),
        (0, r"after: \[2\.0, 2\.0, 2\.0\].*again: \[2\.0\]"),
    ],
    "other programs": [
        (0, r"do not agree on a program.*rank 0: [^\n]* = \S*tanh.*rank 1: [^\n]* = \S*exp"),
        (0, r"after: \[1\.0, 1\.0, 1\.0, 1\.0\]"),
    ],
    "does not come": [(1, "rank 1 of 2 did not come"), (0, "")],
    "other mesh": [(1, "the ranks make different meshes")] * 2,
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_an_error_on_all_ranks(name: str, tmp_path: Path) -> None:
    found = report(tmp_path, [name], "cuda")[name]
    for rank, ((code, pattern), ended) in enumerate(zip(FAULTS[name], found, strict=True)):
        where = f"rank {rank}: code {ended['code']} after {ended['seconds']} s\n{ended['said']}"
        assert ended["code"] is not None, f"it hangs: {where}"
        assert ended["code"] == code if code is not None else ended["code"] != 0, where
        assert re.search(pattern, ended["said"].replace(f"[rank{rank}]:", ""), re.S), where
