"""Gradients of local response normalisation and of lengths. Half is computed in float32."""

from meta import op
from meta.grad.core import gradient
from meta.op.core.check import normalize_axes, normalize_axis
from meta.op.norm import statistics_dtype


def _cast(x, dtype):
    return x if x.dtype == dtype else op.cast(x, dtype)


@gradient(op.lrn)
def lrn(x, dy, size, axis, bias, alpha, beta):
    return op.lrn_dx(x, dy, size, axis, bias, alpha, beta)


def _neighbours(x, before, after, axis):
    """Return the sum over ``before`` elements before each one, itself, and ``after`` behind it."""
    at, shape = normalize_axis(axis, x.ndim), tuple(x.shape)
    sides = [0] * (2 * x.ndim)
    sides[2 * at : 2 * at + 2] = before, after
    padded, total = op.pad(x, tuple(sides)), x
    for shift in range(before + after + 1):
        if shift != before:
            begin = (0,) * at + (shift,)
            end = (*shape[:at], shift + shape[at])
            total = op.add(total, op.strided_slice(padded, begin, end))
    return total


@gradient(op.lrn_dx)
def lrn_dx(x, dy, dy_, size, axis, bias, alpha, beta):
    """For dx = dy D - 2 c beta x W'(dy x E), u = dy_: by x and by dy of sum(u dx).

    W sums over the neighbourhood, W' over the places whose neighbourhood it is; c = alpha / size,
    d = bias + c W(x²), D = d^-beta, E = D / d, F = E / d.
    """
    x_, dy, u = (_cast(t, statistics_dtype(x.dtype)) for t in (x, dy, dy_))
    before, after, c = size // 2, (size - 1) // 2, alpha / size
    base = op.add(op.multiply(_neighbours(x_ * x_, before, after, axis), c), bias)
    root = op.power(base, -beta)
    steep = root / base
    around = _neighbours(u * x_, before, after, axis)
    slope = op.multiply(steep, 2 * c * beta)
    by_dy = u * root - slope * around * x_
    # Through d, of which D and E are functions.
    by_base = op.multiply(around * dy * x_ * steep / base, 2 * c * beta * (beta + 1))
    by_base = by_base - op.multiply(steep * u * dy, beta)
    by_x = op.multiply(x_ * _neighbours(by_base, after, before, axis), 2 * c)
    spread = _neighbours(dy * x_ * slope, after, before, axis)
    by_x = by_x - slope * around * dy - u * spread
    return _cast(by_x, x.dtype), _cast(by_dy, x.dtype)


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
