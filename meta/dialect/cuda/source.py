"""The CUDA source of the kernels of this folder, for given dtypes and sizes."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import torch

from meta.runtime import cuda_source

C_TYPES = {
    "float32": "float",
    "float64": "double",
    "float16": "f16",
    "bfloat16": "bf16",
    "int32": "int",
    "int64": "long long",
    "bits8": "unsigned char",
    "bits16": "unsigned short",
    "bits32": "unsigned",
    "bits64": "unsigned long long",
}
"""The types of source by dtype; ``scalars.cuh`` defines those of half precision. What is only
moved, of any dtype, is "bits8" to "bits64", by its size.
"""
_FOLDER = Path(__file__).parent


def source(name: str, types: Mapping[str, str], sizes: Mapping[str, object]) -> str:
    """Return the source ``name``.cu with macros for dtypes and for numbers; the file says which."""
    macros = {name: C_TYPES[dtype] for name, dtype in types.items()}
    return cuda_source.with_macros(_FOLDER / f"{name}.cu", {**macros, **sizes})


def packed(
    pointers: tuple[str, ...], tensors: Mapping[str, torch.Tensor], layout: str, *numbers: float
) -> bytes:
    """Return the parameters of a launch: the addresses of those of the named tensors that there
    are, then numbers in the layout that ``struct`` takes.
    """
    at = [0 if (t := tensors.get(n)) is None else t.data_ptr() for n in pointers]
    return struct.pack(f"<{len(at)}Q{layout}", *at, *numbers)
