"""Along an axis: running sums, products and extremes, differences, gradients and integrals."""

import math

from meta import op
from meta.frontend.aten.arguments import axis_of, cast, promote, require_real, result_dtype
from meta.frontend.aten.converters.reduce import summed
from meta.frontend.aten.converters.slices import sliced
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import SLICE_END, static_extent
from meta.ir.dims import UnknownDim
from meta.op.core.check import normalize_axis
from meta.op.loss_reduction import in_compute_dtype


def narrowed(x, axis, begin, end):
    """Return the slice from ``begin`` to ``end`` (None: the rest) along an axis."""
    at = normalize_axis(axis, x.ndim)
    ends = [SLICE_END if isinstance(d, UnknownDim) else d for d in x.shape[: at + 1]]
    ends[at] = ends[at] if end is None else end
    return op.strided_slice(x, (*(0,) * at, begin), tuple(ends), None)


def accumulated(base, x, axis, dtype):
    """Return running sums or products; of a 0-d tensor the element."""
    x = summed(x, dtype)
    return base.plain(x, axis, x.dtype, False) if x.ndim else x


@aten("cumsum", op.cumsum)
def cumsum(x, *, dim, dtype):
    return accumulated(op.cumsum, x, dim, dtype)


@aten("cumprod", op.cumprod)
def cumprod(x, *, dim, dtype):
    return accumulated(op.cumprod, x, dim, dtype)


# An associative function of neighbours is accumulated in log2(n) steps: after each an element has
# the result of twice as many before it.


def shifts(x, axis):
    """Return 1, 2, 4, ... below the extent of an axis."""
    extent = static_extent(x.shape[axis], "an axis that is accumulated along")
    return [2**k for k in range(math.ceil(math.log2(extent)))] if extent > 1 else []


def running_extreme(not_less):
    """Return the converter of the largest or smallest so far, and where it was last; a NaN is both
    from then on.
    """

    def later(earlier, now):
        """Whether the extreme of two neighbours is the later one."""
        wins = not_less(now, earlier)
        if "float" not in now.dtype:
            return wins
        kept = op.logical_and(op.logical_not(op.isnan(earlier)), wins)
        return op.logical_or(op.isnan(now), kept)

    def converted(x, *, dim):
        require_real(x)
        if x.ndim == 0:
            return x, op.zeros_like(x, "int64")
        axis = normalize_axis(dim, x.ndim)
        numbers = op.cumsum.plain(op.ones_like(x, "int64"), axis, "int64", True)
        values, places = x, numbers
        for shift in shifts(x, axis):
            first = [narrowed(t, axis, 0, shift) for t in (values, places)]
            before = [narrowed(t, axis, 0, x.shape[axis] - shift) for t in (values, places)]
            now = [narrowed(t, axis, shift, None) for t in (values, places)]
            chosen = later(before[0], now[0])
            both = (op.where(chosen, n, b) for n, b in zip(now, before, strict=True))
            values, places = (op.concat((f, t), axis) for f, t in zip(first, both, strict=True))
        return op.take_along_axis(x, places, axis), places

    return converted


RUNNING = (op.where, op.concat, op.strided_slice, op.take_along_axis)
aten("cummax", op.greater_equal, *RUNNING)(running_extreme(op.greater_equal))
aten("cummin", op.less_equal, *RUNNING)(running_extreme(op.less_equal))


@aten("logcumsumexp", "_logcumsumexp", op.logaddexp, op.concat, op.strided_slice)
def logcumsumexp(x, *, dim):
    require_real(x)
    (x,) = promote(x, floating=True)
    if x.ndim == 0:
        return x
    axis, y = normalize_axis(dim, x.ndim), in_compute_dtype(x)
    for shift in shifts(x, axis):
        before = narrowed(y, axis, 0, x.shape[axis] - shift)
        both = op.logaddexp(before, narrowed(y, axis, shift, None))
        y = op.concat((narrowed(y, axis, 0, shift), both), axis)
    return cast(y, x.dtype)


@aten("diff", op.subtract, op.not_equal, op.concat, op.strided_slice)
def diff(x, before=None, after=None, *, n, dim):
    parts = [t for t in (before, x, after) if t is not None]
    x = op.concat(tuple(promote(*parts)), dim) if len(parts) > 1 else x
    for _ in range(min(n, static_extent(x.shape[dim], "an axis of differences"))):
        high, low = narrowed(x, dim, 1, None), narrowed(x, dim, 0, x.shape[dim] - 1)
        x = op.not_equal(high, low) if x.dtype == "bool" else op.subtract(high, low)
    return x


# Gradients and integrals.


# Derivatives and integrals of samples along axes.


def inside(d1, d2):
    return -d2 / (d1 * (d1 + d2)), (d2 - d1) / (d1 * d2), d1 / (d2 * (d1 + d2))


def at_edge(d1, d2, order):
    if order == 1:
        return -1.0 / d1, 1.0 / d1
    return -(d1 + d1 + d2) / (d1 * (d1 + d2)), (d1 + d2) / (d1 * d2), -d1 / (d2 * (d1 + d2))


def weighted(samples, weights):
    first, *others = (op.multiply(s, w) for s, w in zip(samples, weights, strict=True))
    for term in others:
        first = op.add(first, term)
    return first


def derivative(x, spacing, axis, order):
    """Differences of second order inside, of first or second at the edges, as NumPy's gradient."""
    count = x.shape[axis]
    if not isinstance(count, int) or count < order + 1:
        raise Unconvertible(f"an axis of {count} has no differences of order {order}")
    if hasattr(spacing, "shape"):
        column = op.reshape(spacing, (count, *(1,) * (x.ndim - 1 - axis)))
        column = op.reshape(column, (*(1,) * axis, *column.shape))
        steps = op.subtract(sliced(column, axis, 1, SLICE_END), sliced(column, axis, 0, -1))

        def distance(begin, end):
            return sliced(steps, axis, begin, end)
    else:

        def distance(_begin, _end):
            return float(spacing)

    def edge(places, near, far):
        samples = (sliced(x, axis, p, p + 1) for p in places[: order + 1])
        distances = (distance(i, i + 1) for i in (near, far if order > 1 else near))
        return weighted(tuple(samples), at_edge(*distances, order))

    parts = [edge((0, 1, 2), 0, 1)]
    if count > 2:
        samples = (sliced(x, axis, i, count - 2 + i) for i in range(3))
        weights = inside(distance(0, count - 2), distance(1, count - 1))
        parts.append(weighted(tuple(samples), weights))
    # From the end the distances count backwards.
    last = edge((count - 1, count - 2, count - 3), count - 2, count - 3)
    return op.concat((*parts, op.negative(last)), axis)


def gradient(x, spacing, dim, edge_order):
    """The derivative along each axis; spacing: for each, one number or the samples' places."""
    axes = [axis_of(d, x.ndim) for d in (range(x.ndim) if dim is None else dim)]
    spacing = (spacing,) * len(axes) if not isinstance(spacing, tuple) else spacing
    (x,) = promote(x, floating=True)
    each = [cast(s, x.dtype) if hasattr(s, "shape") else s for s in spacing]
    return tuple(derivative(x, s, a, edge_order) for s, a in zip(each, axes, strict=True))


def _axes(dim):
    return None if dim is None else (dim,)


@aten("gradient.scalarint", op.multiply, op.add, op.concat)
def gradient_all(x, *, spacing, dim, edge_order):
    return gradient(x, 1 if spacing is None else spacing, _axes(dim), edge_order)


@aten("gradient.scalararray", op.multiply, op.add, op.concat)
def gradient_scaled(x, spacing, *, dim, edge_order):
    return gradient(x, spacing, dim, edge_order)


@aten("gradient.array", op.multiply, op.add, op.concat)
def gradient_along(x, *, dim, edge_order):
    return gradient(x, 1, dim, edge_order)


@aten("gradient.scalarrayint", op.multiply, op.add, op.concat)
def gradient_by_numbers_all(x, *, spacing, dim, edge_order):
    return gradient(x, spacing, _axes(dim), edge_order)


@aten("gradient.scalarrayarray", op.multiply, op.add, op.concat)
def gradient_by_numbers(x, *, spacing, dim, edge_order):
    return gradient(x, spacing, dim, edge_order)


@aten("gradient.tensorarrayint", op.multiply, op.add, op.concat)
def gradient_at_coordinates_all(x, spacing, *, dim, edge_order):
    return gradient(x, spacing, _axes(dim), edge_order)


@aten("gradient.tensorarray", op.multiply, op.add, op.concat)
def gradient_at_coordinates(x, spacing, *, dim, edge_order):
    return gradient(x, spacing, dim, edge_order)


# Integrals by the trapezoidal rule.


def areas(y, distance, axis):
    """Twice the areas between neighbouring samples."""
    y, distance = promote(y, distance)
    pairs = op.add(sliced(y, axis, 0, -1), sliced(y, axis, 1, SLICE_END))
    return op.multiply(pairs, distance)


def distances(y, x, axis):
    """The distances of places, which a vector has along the axis."""
    if x.ndim == 1:
        x = op.reshape(x, (x.shape[0], *(1,) * (y.ndim - 1 - axis)))
    at = axis - (y.ndim - x.ndim)
    return op.subtract(sliced(x, at, 1, SLICE_END), sliced(x, at, 0, -1))


def halved(x):
    dtype = result_dtype(x, 0.5)
    return op.multiply(cast(x, dtype), 0.5)


def integral(y, distance, axis):
    total = areas(y, distance, axis)
    return halved(op.sum(total, axis, dtype=total.dtype))


def running(y, distance, axis):
    total = areas(y, distance, axis)
    return halved(op.cumsum(total, axis, dtype=total.dtype))


@aten("trapezoid.dx", "trapz.dx", op.sum, op.multiply)
def trapezoid(y, *, dx, dim):
    return integral(y, dx, axis_of(dim, y.ndim))


@aten("trapezoid.x", "trapz.x", op.sum, op.multiply, op.subtract)
def trapezoid_at(y, x, *, dim):
    axis = axis_of(dim, y.ndim)
    return integral(y, distances(y, x, axis), axis)


@aten("cumulative_trapezoid.dx", op.cumsum, op.multiply)
def cumulative_trapezoid(y, *, dx, dim):
    return running(y, dx, axis_of(dim, y.ndim))


@aten("cumulative_trapezoid.x", op.cumsum, op.multiply, op.subtract)
def cumulative_trapezoid_at(y, x, *, dim):
    axis = axis_of(dim, y.ndim)
    return running(y, distances(y, x, axis), axis)
