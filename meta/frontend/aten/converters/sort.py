"""Orders and sets: sorting, ranks, searches, and elements that are unique."""

import math

from meta import op
from meta.base.call_context import current
from meta.base.dtype import is_float
from meta.frontend.aten.arguments import (
    as_tensor,
    cast,
    device_of,
    is_number,
    promote,
    require_real,
)
from meta.frontend.aten.converters.reduce import elements_at, of_scalar
from meta.frontend.aten.converters.scan import narrowed
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import is_static, static_extent
from meta.op.core.check import normalize_axis
from meta.op.core.tracing import Trace


def order(x, dim, descending):
    """Return the indices that sort a tensor; equal elements keep their order."""
    require_real(x)
    return op.argsort.plain(x, dim, descending, "int64")


@aten("sort", op.argsort, op.take_along_axis)
def sort(x, *, dim, descending):
    if x.ndim == 0:
        return of_scalar(x)
    places = order(x, dim, descending)
    return op.take_along_axis(x, places, dim), places


@aten("sort.stable", op.argsort, op.take_along_axis, ignore=("stable",))
def sort_stable(x, *, dim, descending):
    return sort(x, dim=dim, descending=descending)


@aten("argsort", op.argsort)
def argsort(x, *, dim, descending):
    return order(x, dim, descending) if x.ndim else op.zeros_like(x, "int64")


@aten("argsort.stable", op.argsort, ignore=("stable",))
def argsort_stable(x, *, dim, descending):
    return argsort(x, dim=dim, descending=descending)


@aten("msort", op.sort)
def msort(x):
    require_real(x)
    return op.sort.plain(x, 0, False) if x.ndim else x


@aten("topk", op.topk, ignore=("sorted",))
def topk(x, *, k, dim, largest):
    require_real(x)
    if x.ndim == 0:
        return of_scalar(x) if k else tuple(op.zeros((0,), d) for d in (x.dtype, "int64"))
    k = static_extent(k, "the largest elements")
    return op.topk.plain(x, k, dim, largest, "both", "int64")


def nth(places, rank, dim):
    """Return the place, on an axis of extent 1, of the element of a rank, known or not."""
    if not is_number(rank):
        return op.take_along_axis(places, rank, dim)
    at = normalize_axis(dim, places.ndim)
    begin, end = (0,) * at, places.shape[:at]
    return op.strided_slice(places, (*begin, rank), (*end, rank + 1), None)


@aten("kthvalue", op.argsort, op.strided_slice, op.take_along_axis, op.squeeze)
def kthvalue(x, *, k, dim, keepdim):
    if x.ndim == 0:
        return of_scalar(x)
    return elements_at(x, nth(order(x, dim, False), k - 1, dim), dim, keepdim)


# Medians: of an even number of elements the lower of both in the middle.


def median_index(x, dim, skip):
    """Return the place of the median; of NaN, which comes last in the order, that of the last
    element of the order, unless NaN is skipped.
    """
    places = order(x, dim, False)
    count = static_extent(x.shape[dim], "the axis of a median")
    if not is_float(x.dtype):
        return nth(places, (count - 1) // 2, dim)
    numbers = op.sum(op.logical_not(op.isnan(x)), dim, True)
    if skip:
        ranks = op.floor_divide(op.subtract(numbers, 1), 2)
        return nth(places, op.maximum(ranks, 0), dim)
    # The first NaN stands behind the numbers.
    broken = op.less(numbers, count)
    last = op.minimum(numbers, count - 1)
    return nth(places, op.where(broken, last, (count - 1) // 2), dim)


def median_of(skip):
    def of_all(x):
        flat = op.reshape(x, (-1,))
        if flat.shape[0] == 0:
            raise Unconvertible("there is no median of no elements")
        return elements_at(flat, median_index(flat, 0, skip), 0, False)[0]

    def along(x, *, dim, keepdim):
        if x.ndim == 0:
            return of_scalar(x)
        return elements_at(x, median_index(x, dim, skip), dim, keepdim)

    return of_all, along


MEDIAN = (op.argsort, op.isnan, op.sum, op.where, op.take_along_axis)
for _name in ("median", "nanmedian"):
    _of_all, _along = median_of(_name == "nanmedian")
    aten(_name, *MEDIAN)(_of_all)
    aten(f"{_name}.dim", *MEDIAN)(_along)


@aten("mode", op.equal, op.sum, op.argsort, op.argmax, op.take_along_axis)
def mode(x, *, dim, keepdim):
    """The most frequent element, the smallest of several, and where it is last."""
    if x.ndim == 0:
        return of_scalar(x)
    places = order(x, dim, False)
    at = normalize_axis(dim, x.ndim)
    ranked = op.take_along_axis(x, places, at)
    same = op.equal(op.expand_dims(ranked, at), op.expand_dims(ranked, at + 1))
    count = op.sum(same, at + 1)
    # Equal elements are neighbours and have one count: the last one of the first group.
    first = op.argmax(count, at, True)
    length = op.take_along_axis(count, first, at)
    last = op.subtract(op.add(first, length), 1)
    return elements_at(x, op.take_along_axis(places, last, at), at, keepdim)


# Quantiles.

ROUNDED = {"lower": op.floor, "higher": op.ceil, "nearest": op.round}


def quantiles(x, q, dim, keepdim, interpolation, skip):
    """Return quantiles as torch: the axis of ``q``, if that is a vector, comes first."""
    rank = x.ndim
    if dim is None or rank == 0:
        rows = op.reshape(x, (-1,))
    else:
        at = normalize_axis(dim, rank)
        rows = op.permute_dims(x, (*(i for i in range(rank) if i != at), at))
    last = rows.ndim - 1
    extent = static_extent(rows.shape[last], "the axis of a quantile")
    ranked = op.sort.plain(rows, last, False)
    points = op.full((1,), q, x.dtype, device_of(x)) if is_number(q) else op.reshape(q, (-1,))
    points = op.reshape(points, (*(1,) * last, points.shape[0]))
    valid = op.sum(op.logical_not(op.isnan(rows)), last, True)
    if skip:
        span = cast(op.maximum(op.subtract(valid, 1), 0), x.dtype)
        position = op.multiply(points, span)
    else:
        # NaN is last in the order.
        position = op.multiply(points, float(extent - 1))
        position = op.where(op.less(valid, extent), float(extent - 1), position)
    shape = (*rows.shape[:last], points.shape[last])
    position = op.broadcast_to(position, shape)
    if interpolation in ROUNDED:
        place = cast(ROUNDED[interpolation](position), "int64")
        found = op.take_along_axis(ranked, place, last)
    else:
        below, above = op.floor(position), op.ceil(position)
        low, high = (op.take_along_axis(ranked, cast(p, "int64"), last) for p in (below, above))
        share = 0.5 if interpolation == "midpoint" else op.subtract(position, below)
        found = op.lerp(low, high, share)
    found = op.permute_dims(found, (last, *range(last)))
    if keepdim:
        if dim is None or rank == 0:
            found = op.reshape(found, (points.shape[last], *(1,) * rank))
        else:
            found = op.expand_dims(found, at + 1)
    return op.squeeze(found, 0) if is_number(q) or q.ndim == 0 else found


QUANTILE = (op.sort, op.isnan, op.take_along_axis, op.lerp, op.floor, op.ceil, op.round)


def quantile(skip):
    def of_tensor(x, q, *, dim, keepdim, interpolation):
        return quantiles(x, q, dim, keepdim, interpolation, skip)

    def of_number(x, *, q, dim, keepdim, interpolation):
        return quantiles(x, q, dim, keepdim, interpolation, skip)

    return of_tensor, of_number


for _name in ("quantile", "nanquantile"):
    _of_tensor, _of_number = quantile(_name == "nanquantile")
    aten(_name, *QUANTILE)(_of_tensor)
    aten(f"{_name}.scalar", *QUANTILE)(_of_number)


# Places in a sorted sequence.


def inserted(sequence, values, right, out_int32):
    sequence, values = promote(sequence, values)
    device = device_of(sequence)
    values = as_tensor(values, sequence.dtype, device)
    dtype = "int32" if out_int32 else "int64"
    return op.searchsorted.plain(sequence, values, right, dtype)


@aten("searchsorted.Tensor", "searchsorted.Scalar", op.searchsorted, op.take_along_axis)
def searchsorted(sequence, values, sorter=None, *, out_int32, right, side):
    if sorter is not None:
        sequence = op.take_along_axis(sequence, sorter, -1)
    return inserted(sequence, values, right or side == "right", out_int32)


@aten("bucketize.Tensor", "bucketize.Scalar", op.searchsorted)
def bucketize(values, boundaries, *, out_int32, right):
    return inserted(boundaries, values, right, out_int32)


# Distinct elements, runs of equal ones, and counts of values in bins.


def _nothing():
    """Return what torch gives for a result that was not asked for."""
    return op.zeros((0,), "int64")


@aten("_unique2", op.unique, ignore=("sorted",))
def unique(x, *, return_inverse, return_counts):
    found = op.unique(x, return_inverse, return_counts)
    values, *rest = found if isinstance(found, tuple) else (found,)
    inverse = rest.pop(0) if return_inverse else _nothing()
    return values, inverse, rest[0] if return_counts else _nothing()


@aten("_unique", op.unique, ignore=("sorted",))
def unique_(x, *, return_inverse):
    return unique(x, return_inverse=return_inverse, return_counts=False)[:2]


LARGEST_KEYS = 64
"""Columns by which rows are sorted, one after the other."""


def rows_of(x, axis):
    """Return the slices along an axis as rows of a matrix."""
    at = normalize_axis(axis, x.ndim)
    if not is_static(x.shape):
        raise Unconvertible("slices are compared for extents that are known")
    others = [i for i in range(x.ndim) if i != at]
    shape = (x.shape[at], math.prod(x.shape[i] for i in others))
    return op.reshape(op.permute_dims(x, (at, *others)), shape)


def lexical_order(rows):
    """Return the indices that sort rows by their first column, then by the second, ..."""
    count, columns = rows.shape
    if columns > LARGEST_KEYS:
        raise Unconvertible(f"slices of more than {LARGEST_KEYS} elements are not sorted")
    order = op.cumsum.plain(op.ones((count,), "int64"), 0, "int64", True)
    for column in reversed(range(columns)):
        keys = op.take(op.squeeze(narrowed(rows, 1, column, column + 1), 1), order, 0)
        order = op.take(order, op.argsort.plain(keys, 0, False, "int64"), 0)
    return order


def begins(rows):
    """Return whether each row differs from the one before it; the first one does."""
    count, columns = rows.shape
    ones = op.ones((min(count, 1),), "bool")
    if count < 2:
        return ones
    if not columns:
        return op.concat((ones, op.zeros((count - 1,), "bool")), 0)
    differ = op.not_equal(narrowed(rows, 0, 1, None), narrowed(rows, 0, 0, count - 1))
    return op.concat((ones, op.any(differ, 1)), 0)


def runs(x, axis, ordered):
    """Return a slice of each run of equal ones along an axis, in which run each slice is, and the
    lengths; of neighbours, or with ``ordered`` of all after they are sorted. torch gives all three
    whether they are asked for or not.
    """
    require_real(x)
    rows = rows_of(x, axis)
    count = rows.shape[0]
    order = lexical_order(rows) if ordered else None
    rows = rows if order is None else op.take(rows, order, 0)
    new = begins(rows)
    (starts,) = op.nonzero(new)
    chosen = starts if order is None else op.take(order, starts, 0)
    values = op.take(x, chosen, axis)
    inverse = op.subtract(op.cumsum.plain(cast(new, "int64"), 0, "int64", False), 1)
    if order is not None:
        inverse = op.scatter.plain(op.zeros_like(order), 0, order, inverse)
    ends = op.concat((starts, op.full((1,), count, "int64")), 0)
    lengths = op.subtract(narrowed(ends, 0, 1, None), starts)
    return values, inverse, lengths


RETURNS = ("return_inverse", "return_counts")


@aten("unique_dim", op.argsort, op.nonzero, op.take, ignore=("sorted", *RETURNS))
def unique_dim(x, *, dim):
    return runs(x, dim, True)


@aten("unique_dim_consecutive", op.nonzero, op.take, ignore=RETURNS)
def unique_dim_consecutive(x, *, dim):
    return runs(x, dim, False)


@aten("unique_consecutive", op.nonzero, op.take, op.reshape)
def unique_consecutive(x, *, return_inverse, return_counts, dim):
    if dim is not None:
        return runs(x, dim, False)
    values, inverse, lengths = runs(op.reshape(x, (-1,)), 0, False)
    inverse = op.reshape(inverse, x.shape) if return_inverse else _nothing()
    return values, inverse, lengths if return_counts else _nothing()


# Counts.


@aten("bincount", op.bincount)
def bincount(x, weights=None, *, minlength):
    if isinstance(current(), Trace):
        raise Unconvertible("how long the result is depends on the elements", hint="histc")
    weights = weights if weights is None or "float" in weights.dtype else cast(weights, "float64")
    return op.bincount(x, weights, minlength)


@aten("histc", op.floor, op.scatter_add, op.where, op.min, op.max, op.clip)
def histc(x, *, bins, min, max):
    """How many elements are in each of so many bins of one width; without bounds, between the
    smallest and the largest element.
    """
    require_real(x)
    wide = cast(op.reshape(x, (-1,)), "float64")
    static_extent(wide.shape[0], "the elements to be counted")
    if min == max and wide.shape[0]:
        low, high = op.min(wide), op.max(wide)
        same = op.equal(low, high)
        low, high = (
            op.where(same, op.subtract(low, 1.0), low),
            op.where(same, op.add(high, 1.0), high),
        )
    else:
        low, high = (min - 1.0, max + 1.0) if min == max else (float(min), float(max))
        low, high = (op.full((), b, "float64") for b in (low, high))
    inside = op.logical_and(op.greater_equal(wide, low), op.less_equal(wide, high))
    share = op.divide(op.multiply(op.subtract(wide, low), float(bins)), op.subtract(high, low))
    place = cast(op.clip(op.where(inside, op.floor(share), 0.0), 0.0, bins - 1.0), "int64")
    counts = op.scatter_add.plain(op.zeros((bins,), "int64"), 0, place, cast(inside, "int64"))
    return cast(counts, x.dtype)


aten.refuse(
    "histogram.bin_ct",
    "histogram.bins_tensor",
    "_histogramdd_bin_edges",
    "_histogramdd_from_bin_cts",
    "_histogramdd_from_bin_tensors",
    why="histograms with edges are not converted",
)
