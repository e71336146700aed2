"""The CUDA source of the kernels of this folder, for given dtypes and sizes."""

from __future__ import annotations

from pathlib import Path

from meta.runtime import cuda_text

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


def source(name: str, types: dict[str, str], sizes: dict[str, object]) -> str:
    """Return the source ``name``.cu with macros for dtypes and for numbers; the file says which."""
    macros = {name: C_TYPES[dtype] for name, dtype in types.items()}
    return cuda_text.source(_FOLDER / f"{name}.cu", {**macros, **sizes})
