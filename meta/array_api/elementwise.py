"""Elementwise functions of the Array API standard that take more than those of `meta`."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.base.dtype import COMPLEX, is_float
from meta.op.core.function import as_operand
from meta.runtime.ndarray import array

Array = Any
"""An array, or a traced one."""
Bound = int | float | Array | None


def conj(x: Array, /) -> Array:
    """Return the conjugate of complex numbers, and other numbers as they are.

    >>> [meta.array_api.conj(meta.array(x)).item() for x in (1 + 2j, 3)]
    [(1-2j), 3]
    """
    x = as_operand(x)
    return op.conj(x) if x.dtype in COMPLEX else op.copy(x)


def real(x: Array, /) -> Array:
    """Return the real part of complex numbers, and other numbers as they are.

    >>> [meta.array_api.real(meta.array(x)).item() for x in (1 + 2j, 3)]
    [1.0, 3]
    """
    x = as_operand(x)
    return op.real(x) if x.dtype in COMPLEX else op.copy(x)


def remainder(x1: Array | float, x2: Array | float, /) -> Array:
    """Return x1 - x2 * floor(x1 / x2), which has the sign of x2, zeros included.

    >>> meta.array_api.remainder(meta.array([5, -5, 5]), meta.array([3, 3, -3])).tolist()
    [2, 1, -1]
    """
    found = op.remainder(x1, x2)
    if isinstance(found, int | float) or not is_float(found.dtype):
        return found
    return op.where(op.equal(found, 0), op.copysign(found, x2), found)


def clip(x: Array, /, min: Bound = None, max: Bound = None) -> Array:
    """Return x, but at least ``min`` and at most ``max``, in the dtype of ``x``.

    The bounds are numbers, arrays that are broadcast with x, or None for no bound. Where max < min
    the result is max, and NaN where one of the three is.

    >>> meta.array_api.clip(meta.array([-3, 1, 9]), 0, 5).tolist()
    [0, 1, 5]
    """
    x = as_operand(x)
    numbers = [b for b in (min, max) if b is not None]
    if not numbers:
        return op.copy(x)
    if all(isinstance(b, int | float) for b in numbers) and x.dtype != "uint64":
        return op.clip(x, min, max)
    if x.dtype == "uint64":  # more than the numbers of operators
        min, max = (array(b, x.dtype) if isinstance(b, int) else b for b in (min, max))
    found = x if min is None else op.maximum(x, min)
    found = found if max is None else op.minimum(found, max)
    return found if found.dtype == x.dtype else op.astype(found, x.dtype)
