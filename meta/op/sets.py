"""Functions that compare, choose and count values: membership, sets, quantiles, histograms.

They are composed of operators. The results of ``unique_*`` have a shape that depends on data, as
that of `unique`: they run in eager calls and in the interpreter.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from meta import op
from meta.base.dtype import is_float
from meta.base.errors import ArgumentError
from meta.op.core.check import normalize_axis
from meta.op.core.function import as_operand, function, make_writable
from meta.op.core.tracing import Symbol


@function
def allclose(
    x1: Any, x2: Any, /, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Any:
    """Return whether all elements are close, as `isclose` says: a 0-d array of bool.

    >>> meta.allclose(meta.ones(2), meta.ones(2) + 1e-7).item()
    True
    """
    close = op.isclose(x1, x2, rtol, atol, equal_nan)
    return op.all(close)


@function
def isin(x1: Any, x2: Any, /, *, invert: bool = False) -> Any:
    """Return, in the shape of ``x1``, whether each element is one of ``x2`` (bool).

    x1, x2: of one dtype. ``invert``: whether it is none of them. A NaN is equal to nothing. Every
    pair is compared, which takes size(x1) * size(x2) bytes in an eager call.

    >>> meta.isin(meta.array([1, 2, 3]), meta.array([2, 3])).tolist()
    [False, True, True]
    """
    x1, x2 = as_operand(x1), as_operand(x2)
    found = op.any(op.equal(op.expand_dims(x1, -1), op.reshape(x2, (-1,))), -1)
    return op.logical_not(found) if invert else found


@function
def count_nonzero(
    x: Any, /, axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False
) -> Any:
    """Return how many elements are not 0 along ``axis`` (None: all), as int64. A NaN is not 0.

    >>> meta.count_nonzero(meta.array([0, 3, 5])).item()
    2
    """
    x = as_operand(x)
    nonzero = x if x.dtype == "bool" else op.not_equal(x, 0)
    return op.sum(nonzero, axis, keepdims)


@function
def masked_fill(x: Any, mask: Any, value: Any) -> Any:
    """Return ``x`` with ``value`` where ``mask`` is true. Shapes broadcast; the dtype is x's.

    >>> meta.masked_fill(meta.ones(2), meta.array([True, False]), 0.0).tolist()
    [0.0, 1.0]
    """
    return op.where(mask, value, x)


class UniqueAll(NamedTuple):
    """Result of `unique_all`."""

    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


class UniqueCounts(NamedTuple):
    """Result of `unique_counts`."""

    values: Any
    counts: Any


class UniqueInverse(NamedTuple):
    """Result of `unique_inverse`."""

    values: Any
    inverse_indices: Any


@function
def unique_values(x: Any, /) -> Any:
    """Return the distinct elements of ``x``, ascending. Every NaN is distinct.

    >>> meta.unique_values(meta.array([3, 1, 3])).tolist()
    [1, 3]
    """
    return op.unique(x)


@function
def unique_counts(x: Any, /) -> UniqueCounts:
    """Return the distinct elements of ``x``, ascending, and how often each occurs (int64).

    >>> [x.tolist() for x in meta.unique_counts(meta.array([3, 1, 3]))]
    [[1, 3], [1, 2]]
    """
    return UniqueCounts(*op.unique(x, False, True))


@function
def unique_inverse(x: Any, /) -> UniqueInverse:
    """Return the distinct elements of ``x``, ascending, and the place of each element among them.

    The places have the shape of ``x`` (int64).

    >>> found = meta.unique_inverse(meta.array([7, 5, 7]))
    >>> found.values.tolist(), found.inverse_indices.tolist()
    ([5, 7], [1, 0, 1])
    """
    return UniqueInverse(*op.unique(x, True, False))


@function
def unique_all(x: Any, /) -> UniqueAll:
    """Return the distinct elements of ``x``, where each occurs first, the place of each element
    among them, and how often each occurs.

    ``indices`` count in row-major order; they, ``inverse_indices`` (in the shape of ``x``) and
    ``counts`` are int64.

    >>> found = meta.unique_all(meta.array([7, 5, 7]))
    >>> [part.tolist() for part in found]  # values, indices, inverse_indices, counts
    [[5, 7], [1, 0], [1, 0, 1], [1, 2]]
    """
    values, inverse, counts = op.unique(x, True, True)
    # Sorted by value, with equal ones in their order: each group begins with its first element.
    order = op.argsort(op.reshape(inverse, (-1,)))
    first = op.subtract(op.cumsum(counts, 0, "int64"), counts)
    return UniqueAll(values, op.take(order, first), inverse, counts)


@function
def mode(x: Any, /, axis: int = -1) -> tuple[Any, Any]:
    """Return the most frequent element along ``axis``, and the index of its first occurrence.

    Of equally frequent ones the smallest; NaN only where all are NaN. Every pair along the axis is
    compared, which takes the square of its extent in bytes for each row in an eager call.
    Raises ArgumentError for an empty axis.

    >>> meta.mode(meta.array([1, 3, 3]))[0].item()
    3
    """
    rows = _last(as_operand(x), axis)
    if rows.shape[-1] == 0:
        raise ArgumentError("an empty axis has no most frequent element", found=f"axis {axis}")
    order = op.argsort(rows)
    ranked = op.take_along_axis(rows, order, rows.ndim - 1)
    same = op.equal(op.expand_dims(ranked, -1), op.expand_dims(ranked, -2))
    place = op.expand_dims(op.argmax(op.sum(same, -1), -1), -1)
    found = [op.squeeze(op.take_along_axis(t, place, rows.ndim - 1), -1) for t in (ranked, order)]
    return found[0], found[1]


def _last(x: Any, axis: int) -> Any:
    """Return ``x`` with an axis moved to the end."""
    at = normalize_axis(axis, x.ndim)
    order = [a for a in range(x.ndim) if a != at]
    return x if at == x.ndim - 1 else op.permute_dims(x, (*order, at))


@function
def quantile(x: Any, q: float, /, axis: int | None = None, *, keepdims: bool = False) -> Any:
    """Return the ``q``-quantile along ``axis`` (None: of all), with linear interpolation.

    x: floating point, or integers and bools, which count as float32. q: from 0 to 1. NaN where an
    element is NaN. As NumPy's and torch's. Raises ArgumentError for another q or an empty axis.

    >>> meta.quantile(meta.array([1.0, 2.0, 3.0]), 0.5).item()
    2.0
    """
    return _quantile(x, q, axis, keepdims, skip=False)


@function
def median(x: Any, /, axis: int | None = None, *, keepdims: bool = False) -> Any:
    """Return the median along ``axis`` (None: of all): the mean of the middle two if even.

    NaN where an element is NaN. As NumPy's; torch's is the lower of the two.

    >>> meta.median(meta.array([1.0, 5.0, 2.0])).item()
    2.0
    """
    return _quantile(x, 0.5, axis, keepdims, skip=False)


@function
def nanmedian(x: Any, /, axis: int | None = None, *, keepdims: bool = False) -> Any:
    """Return the `median` of the elements that are not NaN; NaN where there is none.

    >>> nan = float("nan")
    >>> meta.nanmedian(meta.array([[3.0, nan, 1.0], [nan, nan, 4.0]]), axis=1).tolist()
    [2.0, 4.0]
    """
    return _quantile(x, 0.5, axis, keepdims, skip=True)


def _quantile(x: Any, q: float, axis: int | None, keepdims: bool, *, skip: bool) -> Any:
    if not 0 <= q <= 1:
        raise ArgumentError("a quantile is a number from 0 to 1", found=q)
    x = as_operand(x)
    x = x if is_float(x.dtype) else op.astype(x, "float32")
    rows = op.reshape(x, (-1,)) if axis is None else _last(x, axis)
    if rows.shape[-1] == 0:
        raise ArgumentError("an empty axis has no quantile", found=f"shape {x.shape}")
    last = rows.ndim - 1
    ranked = op.sort(rows, -1)  # NaNs are last
    broken = op.isnan(ranked)
    count = op.sum(op.logical_not(broken), -1, True)
    position = op.multiply(op.astype(op.maximum(op.subtract(count, 1), 0), "float64"), q)
    below = op.floor(position)
    share = op.astype(op.subtract(position, below), x.dtype)
    low = op.take_along_axis(ranked, op.astype(below, "int64"), last)
    high = op.take_along_axis(ranked, op.astype(op.ceil(position), "int64"), last)
    # Two equal infinities have no difference.
    between = op.add(low, op.multiply(op.subtract(high, low), share))
    found = op.where(op.equal(low, high), low, between)
    if not skip:
        found = op.where(op.any(broken, -1, True), float("nan"), found)
    if not keepdims:
        return op.squeeze(found, -1)
    kept = [1] * x.ndim if axis is None else [*x.shape]
    if axis is not None:
        kept[normalize_axis(axis, x.ndim)] = 1
    return op.reshape(found, tuple(kept))


@function
def nansum(x: Any, /, axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False) -> Any:
    """Return the sum of the elements that are not NaN along ``axis`` (None: all); 0 of none.

    >>> meta.nansum(meta.array([1.0, float("nan")])).item()
    1.0
    """
    x = as_operand(x)
    kept = op.where(op.isnan(x), 0, x) if is_float(x.dtype) else x
    return op.sum(kept, axis, keepdims)


@function
def nanmean(x: Any, /, axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False) -> Any:
    """Return the mean of the elements that are not NaN along ``axis`` (None: all); NaN of none.

    x: floating point.

    >>> meta.nanmean(meta.array([1.0, float("nan"), 3.0])).item()
    2.0
    """
    x = as_operand(x)
    count = op.sum(op.logical_not(op.isnan(x)), axis, keepdims)
    return op.divide(nansum(x, axis=axis, keepdims=keepdims), op.astype(count, x.dtype))


@function
def bincount(
    x: Any, /, weights: Any = None, minlength: int = 0, *, length: int | None = None
) -> Any:
    """Return how often each of 0, 1, 2, ... occurs in ``x``: int64, a vector.

    x: a vector of integers >= 0. weights: of its shape, added in place of 1; the result has their
    dtype. The result has max(x) + 1 elements, at least ``minlength``, which needs the values of
    ``x``; in a traced program give its ``length``, which no element may reach.
    Raises ArgumentError for a negative element, and for a traced ``x`` without a length.

    >>> meta.bincount(meta.array([0, 2, 2])).tolist()
    [1, 0, 2]
    """
    x = as_operand(x)
    if x.ndim != 1 or is_float(x.dtype) or x.dtype == "bool":
        raise ArgumentError("bincount counts a vector of integers", found=f"{x.dtype}{x.shape}")
    if isinstance(x, Symbol) and length is None:
        raise ArgumentError(
            "the values of a traced array are not known, so neither is the number of bins",
            hint="pass length=",
        )
    if not isinstance(x, Symbol) and x.size:
        least, most = int(op.min(x)), int(op.max(x))
        if least < 0 or (length is not None and most >= length):
            raise ArgumentError(
                "an element has no bin",
                expected=f"0 <= x < {length}" if length is not None else "elements >= 0",
                found=f"elements from {least} to {most}",
            )
        length = max(most + 1, minlength) if length is None else length
    size = max(minlength, length or 0)
    added = op.astype(op.ones_like(x), "int64") if weights is None else as_operand(weights)
    if added.shape != x.shape:
        raise ArgumentError("weights must be of x's shape", expected=x.shape, found=added.shape)
    bins = _zeros(size, added)
    return op.scatter_add(bins, 0, op.astype(x, "int64"), added)


def _zeros(count: int, like: Any) -> Any:
    """Return zeros of the dtype and device of ``like``."""
    zero = op.sum(op.strided_slice(like, (0,), (0,), (1,)), 0)
    return op.broadcast_to(op.astype(zero, like.dtype), (count,))


class Histogram(NamedTuple):
    """Result of `histogram`."""

    counts: Any
    edges: Any


@function
def histogram(
    x: Any,
    /,
    bins: Any = 10,
    range: tuple[float, float] | None = None,
    *,
    weights: Any = None,
    density: bool = False,
) -> Histogram:
    """Return how many elements of ``x`` lie in each bin, and the edges of the bins. As NumPy's.

    x: any shape. bins: their number, between the ends of ``range`` (None: the smallest and the
    largest element), or the ascending edges. A bin holds its lower edge, the last one its upper
    edge as well. Elements outside and NaNs are not counted. counts: int64 [bins], or of the dtype
    of ``weights``, which has x's shape; with ``density`` floating point, of integral 1.
    edges: [bins + 1], of x's dtype, float32 for integers.

    >>> meta.histogram(meta.array([0.0, 1.0, 1.0]), 2)[0].tolist()
    [1, 2]
    """
    x = as_operand(x)
    flat = op.reshape(x if is_float(x.dtype) else op.astype(x, "float32"), (-1,))
    edges = _edges(flat, bins, range) if isinstance(bins, int) else op.astype(bins, flat.dtype)
    count = edges.shape[0] - 1
    place = op.searchsorted(edges, flat, "right")  # 0: below all, count + 1: above all, or NaN
    place = op.where(op.equal(flat, edges[-1]), count, place)
    added = None if weights is None else op.reshape(as_operand(weights), (-1,))
    counts = make_writable(bincount(place, added, length=count + 2)[1:-1])
    if density:
        width = op.subtract(edges[1:], edges[:-1])
        share = op.astype(counts, flat.dtype)
        counts = op.divide(op.divide(share, width), op.sum(share, 0))
    return Histogram(counts, edges)


def _edges(flat: Any, bins: int, limits: tuple[float, float] | None) -> Any:
    """Return the edges of bins of equal width in the dtype of the data."""
    if bins < 1:
        raise ArgumentError("a histogram has one bin or more", found=bins)
    low: Any
    high: Any
    if limits is not None or flat.shape[0] == 0:
        low, high = map(float, limits or (0, 1))
        if not low <= high:
            raise ArgumentError("the range must ascend", found=limits)
        low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
    else:
        low, high = (op.astype(end(flat, 0), "float64") for end in (op.min, op.max))
        half = op.astype(op.equal(low, high), "float64") * 0.5
        low, high = low - half, high + half
    # Where the data are; of `arange` a traced program would have to be told.
    index = op.subtract(op.cumsum(op.add(_zeros(bins + 1, flat), 1), 0, "float64"), 1)
    # In float64, so that an edge between floats of 32 bits is where it belongs.
    inner = op.add(op.multiply(index, (high - low) / bins), low)
    return op.astype(op.where(op.equal(index, float(bins)), high, inner), flat.dtype)
