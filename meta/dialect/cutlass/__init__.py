"""The `cutlass` dialect: matrix products of CUTLASS with epilogues that cuBLASLt lacks.

Gated activations and their gradients, activations and theirs, sums with a residual, products with a
number for each row or column, and products in groups: kernels of quack (package quack-kernels),
written in NVIDIA's CuTe DSL, for half precision on Hopper and Blackwell. `kernel.py` says what a
kernel is, `source/` has the epilogues in the DSL, `machine.py` compiles, keeps and loads machine
code, and `launch.py` calls it. Compiling imports the DSL, which takes six seconds, and takes three
or four for each kernel; a kernel serves all extents, and is kept on disk. What is kept runs
without the DSL's compiler, by its runtime library alone.

Its fused kernels win with large gated layers, and lose with sums, which cuBLASLt does in the same
kernel; its products of groups are faster than ATen's, but not than Triton's (docs/measurements.md).
So other dialects go first: fused kernels are used where the user prefers this dialect
(``meta.dialect.prefer("cutlass")``), and products alone also where measuring chose them.

quack's public functions launch at once. Kernels are therefore made one layer below, with names
that a new version may change: versions are pinned (`VERSIONS`).
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import torch

from meta.dialect.core import FUSED_ONLY, Dialect

INSTALL = "pip install 'meta-operators[cutlass]'"
VERSIONS = {"quack-kernels": "0.6.", "nvidia-cutlass-dsl": "4.8."}
"""The packages that kernels are compiled with, and how their versions begin; as in the extra."""


def probe() -> str | None:
    """Return why the kernels cannot be used, or None."""
    if not torch.cuda.is_available():
        return "no CUDA device"
    return missing()


def missing() -> str | None:
    """Return which package is not there in a version that fits, and what to do; None if all are."""
    for package, wanted in VERSIONS.items():
        try:
            found = version(package)
        except PackageNotFoundError:
            return f"{package} is not installed: {INSTALL}"
        if not found.startswith(wanted):
            return f"{package} {found} is installed, not {wanted}*: {INSTALL}"
    return None


cutlass = Dialect(
    "cutlass",
    devices=("cuda",),
    plevel=FUSED_ONLY,
    probe=probe,
    package=__name__,
    restorer=f"{__name__}.machine",
    compiles=True,
)
