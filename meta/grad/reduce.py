"""Gradients of reductions along axes.

A gradient reaches the reduced elements by broadcasting, from its shape with all axes kept.
"""

from typing import Any

from meta import op
from meta.base.dtype import has_gradient
from meta.grad.core import conjugated, gradient, gradients, in_dtype, not_differentiable
from meta.grad.scan import shift
from meta.ir.types import TensorType
from meta.op.core.reduction import reduction
from meta.op.norm import statistics_dtype
from meta.op.reduce import per_degree

gradients(
    {
        op.sum_dx: lambda dy_, *options: (op.zeros_like(dy_), op.sum(dy_, *options)),
        op.mean_dx: lambda dy_, shape, *options: op.mean(dy_, *options),
        op.prod: lambda x, dy, *options: conjugated(op.prod_dx(x, conjugated(dy), *options)),
    }
)
not_differentiable(op.argmax, op.argmin, why="the result is an index")
not_differentiable(op.all, op.any, why="the result is a bool")


@gradient(op.sum)
def sum(x: TensorType, dy: Any, axis: Any, keepdims: Any) -> Any:
    """dx = dy, repeated; unlike `sum_dx` this does not keep x alive."""
    if not has_gradient(x.dtype):
        return None
    if not isinstance(x, TensorType):  # whose extents only the data can say
        return op.sum_dx(x, dy, axis, keepdims)
    kept = reduction(x.ndim, axis, keepdims).kept_shape(x.known_shape)
    return op.broadcast_to(op.reshape(dy, kept), x.known_shape)


@gradient(op.mean)
def mean(x: TensorType, dy: Any, *options: Any) -> Any:
    return op.mean_dx(dy, x.known_shape, *options)


@gradient(op.max, op.min)
def extremum(x: Any, y: Any, dy: Any, axis: Any) -> Any:
    """dx = dy / n at each of the n elements that equal the result, 0 elsewhere."""
    kept = reduction(x.ndim, axis, True)
    shape = kept.kept_shape(x.shape)
    chosen = op.astype(op.equal(x, op.reshape(y, shape)), dy.dtype)
    count = op.sum(chosen, axis, True)
    return chosen * (op.reshape(dy, shape) / count)


@gradient(op.prod_dx)
def prod_dx(x: Any, dy: Any, dy_: Any, axis: Any, keepdims: bool) -> Any:
    """For u = dy_, p the product of all elements and "\\" for leaving out one:

    by dy, sum_i u[i] p\\i; by x[k], dy sum_i u[i] p\\i\\k over i != k. The sum is split into i < k
    and i > k. With a[k] the product before k and b[k] the sum over i < k of u[i] a[k]\\i, which is
    b[k + 1] = x[k] b[k] + u[k] a[k], and a', b' the same from the other end, it is b a' + a b'.
    Nothing is divided by, so zeros need no care. See `holomorphic` for the conjugates.
    """
    kept = reduction(x.ndim, axis, True)
    others = [i for i in range(x.ndim) if i not in kept.axes]
    order = (*others, *kept.axes)
    shape = tuple(x.shape[i] for i in order)
    dy_ = conjugated(dy_)
    flat = (*shape[: len(others)], kept.count(x.shape))

    def line(t: Any) -> Any:
        return op.reshape(op.permute_dims(t, order), flat)

    v, u = line(x), line(dy_)
    a, b = _without(v, u)
    c, d = (op.flip(t, -1) for t in _without(op.flip(v, -1), op.flip(u, -1)))
    factor = op.reshape(dy, (*flat[:-1], 1))
    by_x = op.reshape(factor * (b * c + a * d), shape)
    by_dy = op.reshape(op.sum(u * (a * c), -1), dy.shape)
    dx = op.permute_dims(by_x, tuple(order.index(i) for i in range(x.ndim)))
    return conjugated(dx), conjugated(by_dy)


def _without(x: Any, u: Any) -> tuple[Any, Any]:
    """Return a and b of `prod_dx` along the last axis."""
    before = op.cumprod.plain(x, -1, x.dtype, True)
    return before, shift(op.linear_scan(x, u * before, -1), -1, -1)


def _deviation(x, dy, axis, correction):
    """Return 2 dy (x - mean) / (n - correction), in the statistics' dtype."""
    wide = statistics_dtype(x.dtype)
    r = reduction(x.ndim, axis, True)
    x = in_dtype(x, wide)
    centred = x - op.mean(x, r.axes, True) if r.axes else op.zeros_like(x)
    slope = op.reshape(in_dtype(dy, wide), r.kept_shape(x.shape)) * (
        2 * per_degree(r.count(x.shape), correction)
    )
    return slope * centred


@gradient(op.var)
def var(x, dy, axis, correction):
    """dx = 2 dy (x - mean) / (n - correction); the mean's own part sums to 0."""
    return in_dtype(_deviation(x, dy, axis, correction), x.dtype)


@gradient(op.std)
def std(x, y, dy, axis, correction):
    """dx = dvar / (2 std), 0 where std is 0."""
    wide = statistics_dtype(x.dtype)
    y, dy = in_dtype(y, wide), in_dtype(dy, wide)
    slope = op.where(op.equal(y, 0.0), op.zeros_like(dy), dy / (y * 2.0))
    return in_dtype(_deviation(x, slope, axis, correction), x.dtype)


@gradient(op.logsumexp)
def logsumexp(x, y, dy, axis):
    """dx = dy exp(x - y)"""
    wide = statistics_dtype(x.dtype)
    shape = reduction(x.ndim, axis, True).kept_shape(x.shape)
    shifted = in_dtype(x, wide) - op.reshape(in_dtype(y, wide), shape)
    return in_dtype(op.exp(shifted) * op.reshape(in_dtype(dy, wide), shape), x.dtype)
