"""NVIDIA's compute-sanitizer finds no fault in hand-written and generated kernels: accesses out of
bounds (memcheck), races in shared memory (racecheck), barriers that not all threads reach
(synccheck).

What runs is this file as a program. Torch's caching allocator is off there, so that memcheck knows
where each array ends.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import meta
from meta.base.registry import OPERATORS
from meta.dialect import only
from meta.dialect.cuda import cuda
from meta.testing import opcheck
from tests.op.records import CASES

pytestmark = pytest.mark.cuda
ROOT = Path(__file__).parents[2]
TOOL = shutil.which("compute-sanitizer") or shutil.which(
    "compute-sanitizer", path="/usr/local/cuda/bin"
)
GENERATED = (
    *("softmax", "log_softmax", "layer_norm", "mse_loss", "conv1d", "scatter_add", "transpose"),
    *("cumsum", "argmax", "max_pool2d_dx", "batch_norm_train", "lamb", "take_dx"),
)
"""Operators whose kernels by TVM are looked at: a kind of schedule each."""


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
@pytest.mark.parametrize("dialect", ["cuda", "tvm"])
def test_the_sanitizer_finds_nothing(dialect: str, tool: str) -> None:
    if TOOL is None:
        pytest.skip("needs compute-sanitizer, of the CUDA toolkit")
    command = [TOOL, "--tool", tool, "--error-exitcode", "9", "--print-limit", "5"]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
    }
    done = subprocess.run(
        [*command, sys.executable, __file__, dialect],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=540,
    )  # fmt: skip
    report = f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    assert done.returncode == 0 and "ERROR SUMMARY: 0 errors" in report, report


def run(dialect: str) -> None:
    """Run one dialect's kernels on the records; hand-written ones at sizes of several blocks."""
    cuda.load()
    wanted = set(cuda.ops) if dialect == "cuda" else set(GENERATED)
    for case in CASES:
        if case.op not in wanted or "cuda" not in case.devices:
            continue
        for one in case.samples[:3]:
            dtype = "float32" if not case.dtypes or "float32" in case.dtypes else case.dtypes[0]
            if dialect in opcheck.accepting(case, one, dtype, "cuda"):
                opcheck.check_dialect(case, one, dtype, dialect, "cuda")
    if dialect == "cuda":
        _larger()
    torch.cuda.synchronize()


def _larger() -> None:
    x = torch.randn(77, 1000, device="cuda", dtype=torch.float16)
    scale = torch.rand(1000, device="cuda")
    indices = torch.randint(0, 50, (77,), device="cuda")
    with only("cuda"):
        arrays = [meta.ndarray(t) for t in (x, scale, scale)]
        OPERATORS["layer_norm"](*arrays)
        OPERATORS["layer_norm_dx"](*arrays, meta.ndarray(x))
        OPERATORS["embedding_dx"](meta.ndarray(x), meta.ndarray(indices), 50)


if __name__ == "__main__":
    run(sys.argv[1])
