"""Gradients of the statistics of elements. Half precision is computed in float32."""

from meta import op
from meta.grad.core import gradient
from meta.grad.reduce import extremum
from meta.op.core.reduction import reduction
from meta.op.moments import per_degree
from meta.op.norm import statistics_dtype


def _cast(x, dtype):
    return x if x.dtype == dtype else op.cast(x, dtype)


def _deviation(x, dy, axis, exclude, correction):
    """Return 2 dy (x - mean) / (n - correction), in the statistics' dtype."""
    wide = statistics_dtype(x.dtype)
    r = reduction(x.ndim, axis, True, exclude)
    x = _cast(x, wide)
    centred = op.subtract(x, op.mean(x, r.axes, True)) if r.axes else op.zeros_like(x)
    slope = op.multiply(
        op.reshape(_cast(dy, wide), r.kept_shape(x.shape)),
        2 * per_degree(r.count(x.shape), correction),
    )
    return op.multiply(slope, centred)


@gradient(op.var)
def var(x, dy, axis, exclude, correction):
    """dx = 2 dy (x - mean) / (n - correction); the mean's own part sums to 0."""
    return _cast(_deviation(x, dy, axis, exclude, correction), x.dtype)


@gradient(op.std)
def std(x, y, dy, axis, exclude, correction):
    """dx = dvar / (2 std), 0 where std is 0."""
    wide = statistics_dtype(x.dtype)
    y, dy = _cast(y, wide), _cast(dy, wide)
    slope = op.where(op.equal(y, 0.0), op.zeros_like(dy), op.divide(dy, op.multiply(y, 2.0)))
    return _cast(_deviation(x, slope, axis, exclude, correction), x.dtype)


@gradient(op.logsumexp)
def logsumexp(x, y, dy, axis, exclude):
    """dx = dy exp(x - y)"""
    wide = statistics_dtype(x.dtype)
    shape = reduction(x.ndim, axis, True, exclude).kept_shape(x.shape)
    shifted = op.subtract(_cast(x, wide), op.reshape(_cast(y, wide), shape))
    return _cast(op.multiply(op.exp(shifted), op.reshape(_cast(dy, wide), shape)), x.dtype)


gradient(op.amax, op.amin)(extremum)
