"""The `cublas` dialect: matrix products of NVIDIA's cuBLASLt, with what follows them fused in.

Kernels are in `gemm.py`, fused ones in `epilogues.py` and `gradients.py`. A product becomes a
`Problem` (`problem.py`), plain data, for which cuBLASLt makes a `ProductPlan` once (`plan.py`):
descriptors, the algorithm and packed arguments. A call is then one function of the library, which
comes with torch and is called through ctypes. The algorithm is the first of cuBLASLt's heuristic;
its others are the kernels' configurations (`algorithms.py`).

Float16, bfloat16, float32 (in TensorFloat-32 only with META_TF32) and float64 are accumulated in at
least float32. Float8 products need compute capability 8.9, and matrix units keep fewer bits of
their sums (`gemm.py`). Transposed and row-strided operands are read in place (`product.py`).

The gradients of activations have no pattern but that of the tanh form of GELU: cuBLASLt's ReLU
gradient reads a bit mask, which is no value of the IR.
"""

from __future__ import annotations

import ctypes
from functools import cache
from importlib import import_module

import torch

from meta.base.device import Device
from meta.dialect.core import LIBRARY, Dialect
from meta.runtime.nvidia_packages import load


@cache
def find_library() -> ctypes.CDLL | None:
    """Return the cuBLASLt of torch's CUDA version, None where there is none."""
    version = torch.version.cuda
    return None if version is None else load(f"libcublasLt.so.{version.split('.')[0]}")


def probe() -> str | None:
    """Return why cuBLASLt cannot be used, or None."""
    if not torch.cuda.is_available():
        return "no CUDA device"
    if find_library() is None:
        return "libcublasLt not found; it comes with torch's CUDA packages (nvidia-cublas)"
    return None


def warmup(device: Device) -> None:
    """Make the handle, for which cuBLASLt looks at the device."""
    import_module(f"{__name__}.library").handle(device.ordinal)


cublas = Dialect(
    "cublas", devices=("cuda",), plevel=LIBRARY, probe=probe, package=__name__, warmup=warmup
)
