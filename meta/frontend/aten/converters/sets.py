"""Distinct elements, runs of equal ones, and counts of values in bins."""

import math

from meta import op
from meta.frontend.aten.converters.scan import part
from meta.frontend.aten.operands import require_real
from meta.frontend.aten.promotion import cast
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import is_static, static_extent
from meta.op.core.check import normalize_axis
from meta.op.core.handler import current
from meta.op.core.tracing import Trace


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
        keys = op.take(op.squeeze(part(rows, 1, column, column + 1), 1), order, 0)
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
    differ = op.not_equal(part(rows, 0, 1, None), part(rows, 0, 0, count - 1))
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
    lengths = op.subtract(part(ends, 0, 1, None), starts)
    return values, inverse, lengths


ASKED = ("return_inverse", "return_counts")


@aten("unique_dim", op.argsort, op.nonzero, op.take, ignore=("sorted", *ASKED))
def unique_dim(x, *, dim):
    return runs(x, dim, True)


@aten("unique_dim_consecutive", op.nonzero, op.take, ignore=ASKED)
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
