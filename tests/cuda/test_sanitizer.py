"""NVIDIA's compute-sanitizer finds no fault in hand-written and generated kernels: accesses out of
bounds (memcheck), races in shared memory (racecheck), barriers that not all threads reach
(synccheck), and reads of memory that nobody has written (initcheck).

What runs is this file as a program. Torch's caching allocator is off there, so that memcheck knows
where each array ends.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import meta
from meta import op
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
    *("softmax", "log_softmax", "layer_norm", "mse_loss", "conv1d", "scatter_add", "permute_dims"),
    *("cumsum", "argmax", "max_pool2d_dx", "batch_norm_train", "lamb", "take_dx"),
)
"""Operators whose kernels by TVM are looked at: a kind of schedule each."""
NOTHING = re.compile(r"ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards")


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck", "initcheck"])
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
    assert done.returncode == 0 and NOTHING.search(report), report


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
        with only("cuda", "torch"):
            larger()
    torch.cuda.synchronize()


def larger(device: str = "cuda") -> None:
    """Run hand-written kernels at sizes of several thread blocks."""

    def array(*shape: int, dtype: torch.dtype = torch.float16) -> meta.ndarray:
        return meta.ndarray(torch.randn(shape, device=device).to(dtype))

    for width in (13, 768, 1000, 8192):
        x, dy = array(77, width), array(77, width)
        scale, bias = (array(width, dtype=torch.float32) for _ in range(2))
        op.layer_norm.plain(x, scale, bias)
        op.layer_norm_dx(x, scale, dy)
        indices = meta.ndarray(torch.randint(0, 50, (77,), device=device))
        op.embedding_dx(dy, indices, 50)
    for channels in (3, 72):
        x, dy = array(4, 17, 17, channels), array(4, 17, 17, channels)
        means, variances, w, b = (array(channels, dtype=torch.float32) for _ in range(4))
        op.batch_norm_train(x, means, variances, w, b, axis=3)
        op.batch_norm_train_dxwb(dy, x, w, b, 1e-5, 3)
    shapes = [(1000, 70), (3,), (65537,), (0,), (1, 5)]
    lists = [tuple(array(*s, dtype=torch.float32) for s in shapes) for _ in range(4)]
    op.multi_tensor_norm(lists[0])
    op.multi_tensor_cast(lists[0], "float16")
    op.multi_tensor_axpby(lists[0], lists[1], 0.5, 2.0)
    op.multi_tensor_adamw(*lists, 1, 0.1)
    op.fuse_tensor(lists[0][:3])
    weights = [(70, 3, 3, 40), (33, 7), (0, 2), (9000, 1)]
    vectors = [tuple(array(s[0]) for s in weights) for _ in range(2)]
    op.multi_tensor_fold_batch_norm([array(*s) for s in weights], *vectors, vectors[0])


if __name__ == "__main__":
    run(sys.argv[1])
