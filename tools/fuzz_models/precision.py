"""What floating point dtypes can hold, and which results must therefore be exact."""

from __future__ import annotations

import torch

BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
"""Significant bits of each floating point dtype."""
SMALLEST = {"float64": 5e-324, "float32": 1e-45, "float16": 6e-8, "bfloat16": 1e-38}
"""About the smallest positive number: what is smaller than a few of these may be 0."""
LARGEST = {"float64": 1e12, "float32": 3e5, "float16": 700.0, "bfloat16": 3e4}
"""Values beyond this are avoided, so that squares and sums of several do not overflow."""
INTS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint8": 8}
GRAINS = 24


def is_float(dtype: str) -> bool:
    """Whether a dtype is floating point."""
    return dtype in BITS


def epsilon(dtype: str) -> float:
    """Return the distance from 1 to the next number."""
    return 2.0 ** (1 - BITS[dtype])


def rounded(values: torch.Tensor, dtype: str) -> torch.Tensor:
    """Return float64 values rounded to what a dtype can hold."""
    if dtype == "float64":
        return values
    return values.to(getattr(torch, dtype)).double()


def representable(values: torch.Tensor, dtype: str) -> bool:
    """Whether a dtype holds float64 values exactly."""
    return bool(((rounded(values, dtype) == values) | values.isnan()).all())


def grain(values: torch.Tensor) -> float:
    """Return a power of two, from 2**-24 to 1, of which all values are multiples; 0 if none is."""
    if not values.is_floating_point():
        return 1.0
    if not bool(values.isfinite().all()):
        return 0.0
    for k in range(0, GRAINS + 1, 2):
        scaled = values * 2.0**k
        if bool((scaled == scaled.round()).all()):
            return 2.0**-k
    return 0.0
