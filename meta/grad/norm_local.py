"""Gradients of local response normalisation and of lengths. Half is computed in float32."""

from meta import op
from meta.grad.core import gradient, not_differentiable
from meta.op.core.check import normalize_axes
from meta.op.norm import statistics_dtype


def _cast(x, dtype):
    return x if x.dtype == dtype else op.cast(x, dtype)


@gradient(op.lrn)
def lrn(x, dy, size, axis, bias, alpha, beta):
    return op.lrn_dx(x, dy, size, axis, bias, alpha, beta)


not_differentiable(
    op.lrn_dx,
    why="second derivatives go through the divisor of every neighbour; compose lrn of multiply, "
    "pad and power to have them",
)


@gradient(op.l2_normalize)
def l2_normalize(x, dy, eps, axis):
    """For n = 1 / sqrt(max(s, eps)), s = sum(x²): dx = n dy - [s > eps] n³ x sum(x dy)."""
    dtype = x.dtype
    x, dy = (_cast(t, statistics_dtype(dtype)) for t in (x, dy))
    axes = normalize_axes(axis, x.ndim)
    square = op.sum(op.multiply(x, x), axes, 1)
    inverse = op.rsqrt(op.maximum(square, eps))
    free = _cast(op.greater(square, eps), x.dtype)
    along = op.multiply(op.sum(op.multiply(x, dy), axes, 1), op.multiply(free, inverse * inverse))
    return _cast(op.multiply(inverse, op.subtract(dy, op.multiply(x, along))), dtype)


@gradient(op.l2norm)
def l2norm(x, y, dy):
    """dx = dy x / y, 0 where y is 0."""
    wide = statistics_dtype(x.dtype)
    y, dy = _cast(y, wide), _cast(dy, wide)
    slope = op.where(op.equal(y, 0.0), op.zeros_like(dy), op.divide(dy, y))
    return _cast(op.multiply(_cast(x, wide), slope), x.dtype)
