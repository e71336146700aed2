"""The CUDA source of the kernels of this folder, for given dtypes and sizes."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import torch

from meta.runtime import nvrtc

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
    return nvrtc.with_macros(_FOLDER / f"{name}.cu", {**macros, **sizes})


class Parameters:
    """The struct that a kernel takes: the addresses of tensors by name, then numbers in the layout
    that ``struct`` has.
    """

    def __init__(self, pointers: tuple[str, ...], layout: str) -> None:
        self.pointers = pointers
        self._struct = struct.Struct(f"<{len(pointers)}Q{layout}")
        self.size = self._struct.size

    def packed(self, tensors: Mapping[str, torch.Tensor], *numbers: float | bytes) -> bytes:
        """Return the struct of a launch with those of the named tensors that there are."""
        at = [0 if (t := tensors.get(n)) is None else t.data_ptr() for n in self.pointers]
        return self._struct.pack(*at, *numbers)
