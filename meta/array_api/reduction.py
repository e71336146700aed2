"""Sums, products, variances, scans and sorting, by the Array API standard."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.base.errors import ArgumentError
from meta.op.core.check import normalize_axis
from meta.op.core.function import as_operand

Array = Any
"""An array, or a traced one."""
Axes = int | tuple[int, ...] | None


def sum(x: Array, /, *, axis: Axes = None, dtype: object = None, keepdims: bool = False) -> Array:
    """Return sums along ``axis`` (None: of all elements), cast to ``dtype`` before.

    >>> meta.array_api.sum(meta.array([[1, 2], [3, 4]]), axis=1, keepdims=True).tolist()
    [[3], [7]]
    """
    return op.sum(x, axis, keepdims, dtype)


def prod(x: Array, /, *, axis: Axes = None, dtype: object = None, keepdims: bool = False) -> Array:
    """Return products along ``axis`` (None: of all elements), cast to ``dtype`` before.

    >>> meta.array_api.prod(meta.array([[1, 2], [3, 4]]), axis=0).tolist()
    [3, 8]
    """
    return op.prod(x, axis, keepdims, dtype)


def cumulative_sum(
    x: Array, /, *, axis: int | None = None, dtype: object = None, include_initial: bool = False
) -> Array:
    """Return the sums of the elements up to each along ``axis``, which a vector may leave out.

    include_initial: the result begins with a 0 and is longer by 1.

    >>> meta.array_api.cumulative_sum(meta.array([[1, 2], [3, 4]]), axis=1).tolist()
    [[1, 3], [3, 7]]
    """
    return _cumulative(op.cumsum, 0, x, axis, dtype, include_initial)


def cumulative_prod(
    x: Array, /, *, axis: int | None = None, dtype: object = None, include_initial: bool = False
) -> Array:
    """Return the products of the elements up to each along ``axis``; see `cumulative_sum`.

    include_initial: the result begins with a 1.

    >>> meta.array_api.cumulative_prod(meta.array([2, 3, 4]), include_initial=True).tolist()
    [1, 2, 6, 24]
    """
    return _cumulative(op.cumprod, 1, x, axis, dtype, include_initial)


def _cumulative(
    scan: Any, first: int, x: Array, axis: int | None, dtype: object, include_initial: bool
) -> Array:
    x = as_operand(x)
    if axis is None and x.ndim != 1:
        raise ArgumentError("axis may be omitted of a vector only", found=f"shape {x.shape}")
    at = normalize_axis(0 if axis is None else axis, x.ndim)
    found = scan(x, at, dtype)
    if not include_initial:
        return found
    before = op.full((*found.shape[:at], 1, *found.shape[at + 1 :]), first, found.dtype)
    return op.concat((before, found), at)


def var(
    x: Array, /, *, axis: Axes = None, correction: int | float = 0.0, keepdims: bool = False
) -> Array:
    """Return variances along ``axis``: the sum of squares is divided by n - ``correction``.

    >>> x = meta.array([1.0, 3.0])
    >>> meta.array_api.var(x).item(), meta.array_api.var(x, correction=1).item()
    (1.0, 2.0)
    """
    return op.var(x, axis, keepdims, correction)


def std(
    x: Array, /, *, axis: Axes = None, correction: int | float = 0.0, keepdims: bool = False
) -> Array:
    """Return standard deviations along ``axis``, the roots of `var`.

    >>> meta.array_api.std(meta.array([1.0, 3.0])).item()
    1.0
    """
    return op.std(x, axis, keepdims, correction)


def sort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """Return ``x`` sorted along ``axis``; the order is always stable.

    >>> meta.array_api.sort(meta.array([3, 1, 2]), descending=True).tolist()
    [3, 2, 1]
    """
    return op.sort(x, axis, descending, stable)


def argsort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """Return the indices (int64) that sort ``x`` along ``axis``; the order is always stable.

    >>> meta.array_api.argsort(meta.array([3.0, 1.0, 2.0])).tolist()
    [1, 2, 0]
    """
    return op.argsort(x, axis, descending, stable)


def searchsorted(
    x1: Array, x2: Array, /, *, side: str = "left", sorter: Array | None = None
) -> Array:
    """Return where to insert ``x2`` so that the vector ``x1`` stays ascending, as int64.

    >>> x = meta.array([1.0, 3.0, 5.0])
    >>> meta.array_api.searchsorted(x, meta.array([3.0, 9.0])).tolist()
    [1, 3]
    >>> meta.array_api.searchsorted(x, meta.array([3.0, 9.0]), side="right").tolist()
    [2, 3]
    """
    return op.searchsorted(x1, x2, side, sorter)
