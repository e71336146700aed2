"""Sums, products, variances, scans and sorting, by the Array API standard.

Sums and products of unsigned integers are uint64 by default, those of signed ones int64; in `meta`
itself both are int64.
"""

from __future__ import annotations

from math import inf
from typing import Any

from meta import op
from meta.base.dtype import canonical, has_gradient
from meta.op.core.function import operand
from meta.op.core.reduction import reduction

Array = Any
"""An array, or a traced one."""
Axes = int | tuple[int, ...] | None


def _accumulated(x: Array, dtype: object) -> tuple[Array, str]:
    """Return what is to be accumulated, and the dtype of the result."""
    x = operand(x)
    if dtype is not None:
        kind = canonical(dtype)
    elif has_gradient(x.dtype):
        kind = x.dtype
    else:
        kind = "uint64" if x.dtype.startswith("uint") else "int64"
    # Integers wrap, so it does not matter in which of 64 bits they are added.
    wide = kind if has_gradient(kind) else "int64"
    return x if x.dtype == wide else op.cast(x, wide), kind


def _as(x: Array, dtype: str) -> Array:
    return x if x.dtype == dtype else op.cast(x, dtype)


def sum(x: Array, /, *, axis: Axes = None, dtype: object = None, keepdims: bool = False) -> Array:
    """Return sums along ``axis`` (None: of all elements), cast to ``dtype`` before."""
    x, kind = _accumulated(x, dtype)
    return _as(op.sum(x, axis, keepdims), kind)


def prod(x: Array, /, *, axis: Axes = None, dtype: object = None, keepdims: bool = False) -> Array:
    """Return products along ``axis`` (None: of all elements), cast to ``dtype`` before."""
    x, kind = _accumulated(x, dtype)
    return _as(op.prod(x, axis, keepdims), kind)


def cumulative_sum(
    x: Array, /, *, axis: int | None = None, dtype: object = None, include_initial: bool = False
) -> Array:
    """Return the sums of the elements up to each along ``axis``; see `meta.cumulative_sum`."""
    x, kind = _accumulated(x, dtype)
    return _as(op.cumulative_sum(x, axis=axis, include_initial=include_initial), kind)


def cumulative_prod(
    x: Array, /, *, axis: int | None = None, dtype: object = None, include_initial: bool = False
) -> Array:
    """Return the products of the elements up to each along ``axis``; see `cumulative_sum`."""
    x, kind = _accumulated(x, dtype)
    return _as(op.cumulative_prod(x, axis=axis, include_initial=include_initial), kind)


def var(
    x: Array, /, *, axis: Axes = None, correction: int | float = 0.0, keepdims: bool = False
) -> Array:
    """Return variances along ``axis``: the sum of squares is divided by n - ``correction``.

    Unlike that of `meta.var`, the correction is 0 by default, and may be a fraction.
    """
    x = operand(x)
    if correction == int(correction):
        return op.var(x, axis, keepdims, False, int(correction))
    r = reduction(x.ndim, axis, keepdims, False)
    count = r.count(x.shape)
    left = count - correction
    return op.var(x, axis, keepdims, False, 0) * (count / left if left > 0 else inf)


def std(
    x: Array, /, *, axis: Axes = None, correction: int | float = 0.0, keepdims: bool = False
) -> Array:
    """Return standard deviations along ``axis``, the roots of `var`."""
    if correction == int(correction):
        return op.std(operand(x), axis, keepdims, False, int(correction))
    return op.sqrt(var(x, axis=axis, correction=correction, keepdims=keepdims))


def sort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """Return ``x`` sorted along ``axis``; the order is always stable."""
    return op.sort(x, axis, descending, stable)


def argsort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """Return the indices (int64) that sort ``x`` along ``axis``; the order is always stable."""
    return op.argsort(x, axis, descending, stable)


def searchsorted(
    x1: Array, x2: Array, /, *, side: str = "left", sorter: Array | None = None
) -> Array:
    """Return where to insert ``x2`` so that the vector ``x1`` stays ascending, as int64."""
    return op.searchsorted(x1, x2, side, sorter)
