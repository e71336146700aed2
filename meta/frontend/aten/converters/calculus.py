"""Derivatives and integrals of samples along axes."""

from meta import op
from meta.frontend.aten.arguments import axis_of
from meta.frontend.aten.converters.slices import WHOLE, sliced
from meta.frontend.aten.promotion import cast, promote, result_dtype
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible

# Weights of neighbouring samples, by their distances, which are numbers or lie along the axis.


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
        steps = op.subtract(sliced(column, axis, 1, WHOLE), sliced(column, axis, 0, -1))

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
def gradient_by_places_all(x, spacing, *, dim, edge_order):
    return gradient(x, spacing, _axes(dim), edge_order)


@aten("gradient.tensorarray", op.multiply, op.add, op.concat)
def gradient_by_places(x, spacing, *, dim, edge_order):
    return gradient(x, spacing, dim, edge_order)


# Integrals by the trapezoidal rule.


def areas(y, distance, axis):
    """Twice the areas between neighbouring samples."""
    y, distance = promote(y, distance)
    pairs = op.add(sliced(y, axis, 0, -1), sliced(y, axis, 1, WHOLE))
    return op.multiply(pairs, distance)


def distances(y, x, axis):
    """The distances of places, which a vector has along the axis."""
    if x.ndim == 1:
        x = op.reshape(x, (x.shape[0], *(1,) * (y.ndim - 1 - axis)))
    at = axis - (y.ndim - x.ndim)
    return op.subtract(sliced(x, at, 1, WHOLE), sliced(x, at, 0, -1))


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
