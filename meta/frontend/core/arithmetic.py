"""Arithmetic as TVM defines it, where base operators define it otherwise: for Relay and for Relax.

Division of integers drops the fraction, as C does. `rounded` is the rounding of Relay, which takes
halves away from zero. In products (convolutions, matrix products) TVM casts both operands to
``out_dtype`` before it multiplies. Integers are exact here as there: they wrap around only where
the result's own dtype does.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isnan, trunc
from typing import Any

import torch

from meta import op
from meta.base.dtype import TO_TORCH, bits, canonical, is_float, limits, prepare_cast, promote
from meta.frontend.core.converter import Unconvertible


def cast_to(x: Any, dtype: str) -> Any:
    """Return ``x`` in a dtype; itself if it has it."""
    return x if x.dtype == dtype else op.astype(x, dtype)


def widened(x: Any) -> Any:
    """Return half precision in float32, as which it is computed; others as they are."""
    return cast_to(x, "float32") if x.dtype in ("float16", "bfloat16") else x


def cast_number(value: bool | int | float, dtype: str) -> bool | int | float:
    """Return a number as a cast to the dtype makes it; to floating point it is left as it is."""
    if is_float(dtype):
        return value
    exact = torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)
    return prepare_cast(exact, TO_TORCH[dtype]).to(TO_TORCH[dtype]).item()


def clip_to_bounds(x: Any, low: int | float, high: int | float) -> Any:
    """Return x within bounds; those of integers may be fractions, infinite, or beyond the dtype."""
    if is_float(x.dtype):
        return op.clip(x, float(low), float(high))
    least, most = int(limits(x.dtype).min), int(limits(x.dtype).max)
    return op.clip(x, _integer_bound(low, least, most), _integer_bound(high, least, most))


def _integer_bound(bound: int | float, least: int, most: int) -> int:
    if isnan(bound):
        raise Unconvertible("clip has a bound that is no number")
    return least if bound <= least else most if bound >= most else trunc(bound)


def truncated_quotient(a: Any, b: Any) -> Any:
    """x1 / x2 without its fraction, in the dtype of both; 0 for an integer by 0."""
    if is_float(a.dtype):
        return op.trunc(op.divide(a, b))
    return op.floor_divide(op.subtract(a, op.fmod(a, b)), b)


def quotient(a: Any, b: Any) -> Any:
    """x1 / x2 in the dtype of both: of integers without the fraction."""
    return op.divide(a, b) if is_float(a.dtype) else truncated_quotient(a, b)


def rounded(x: Any) -> Any:
    """The nearest whole number, halves away from zero; it is exact, as x - trunc(x) is."""
    if not is_float(x.dtype):
        return x
    whole = op.trunc(x)
    away = op.greater_equal(op.abs(op.subtract(x, whole)), 0.5)
    return op.where(away, op.add(whole, op.sign(x)), whole)


def product_dtype(x: Any, out_dtype: str | None) -> str:
    """Return the dtype of an operator's result: ``out_dtype``, or x's if that says nothing."""
    return canonical(out_dtype) if out_dtype and out_dtype != "void" else str(x.dtype)


def product(multiply: Callable[[Any, Any], Any], a: Any, b: Any, out_dtype: str | None) -> Any:
    """Return ``multiply(a, b)`` in ``out_dtype`` (None or "": that of a).

    multiply: a function of two tensors of one dtype, linear in both. Integers are multiplied as
    int32, or as int64 where the result or an operand has 64 bits, and then cast, which is the
    result modulo its range. Floats are multiplied in the widest dtype of the three.
    """
    result = product_dtype(a, out_dtype)
    dtypes = (a.dtype, b.dtype, result)
    if any(map(is_float, dtypes)):
        wide = promote(promote(a.dtype, b.dtype), result)
    else:
        wide = "int64" if max(map(bits, dtypes)) > 32 else "int32"
    return cast_to(multiply(cast_to(a, wide), cast_to(b, wide)), result)
