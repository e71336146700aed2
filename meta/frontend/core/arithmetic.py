"""Arithmetic as TVM defines it, where base operators define it otherwise: for Relay and for Relax.

Division of integers drops the fraction, as C does. `rounded` is the rounding of Relay, which takes
halves away from zero.
"""

from __future__ import annotations

from typing import Any

import torch

from meta import op
from meta.base.dtype import TO_TORCH, convertible, is_float


def cast_to(x: Any, dtype: str) -> Any:
    """Return ``x`` in a dtype; itself if it has it."""
    return x if x.dtype == dtype else op.cast(x, dtype)


def number_in(value: bool | int | float, dtype: str) -> bool | int | float:
    """Return a number as a cast to the dtype makes it; to floating point it is left as it is."""
    if is_float(dtype):
        return value
    exact = torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)
    return convertible(exact, TO_TORCH[dtype]).to(TO_TORCH[dtype]).item()


def truncated_quotient(a: Any, b: Any) -> Any:
    """x1 / x2 without its fraction, in the dtype of both; 0 for an integer by 0."""
    if is_float(a.dtype):
        return op.trunc(op.divide(a, b))
    return op.floor_divide(op.subtract(a, op.fmod(a, b)), b)


def quotient(a: Any, b: Any) -> Any:
    """x1 / x2 in the dtype of both: of integers without the fraction."""
    return op.divide(a, b) if is_float(a.dtype) else truncated_quotient(a, b)


def rounded(x: Any) -> Any:
    """The nearest whole number, halves away from zero: 0.5 to 1, -2.5 to -3.

    x - trunc(x) is exact, so that nothing is rounded twice, as adding 0.5 to x would.
    """
    if not is_float(x.dtype):
        return x
    whole = op.trunc(x)
    away = op.greater_equal(op.abs(op.subtract(x, whole)), 0.5)
    return op.where(away, op.add(whole, op.sign(x)), whole)
