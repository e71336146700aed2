"""Normalisation by the root mean square in tensor expressions, in at least float32."""

from tvm import te, tirx

from meta import op
from meta.dialect.tvm.broadcast import cast
from meta.dialect.tvm.compute import COMM_REDUCE, OPAQUE, compute
from meta.dialect.tvm.reduce import reduced, result_index
from meta.op.core.reduction import reduction
from meta.op.norm import statistics_dtype


def _wide(x):
    """Return the function from an index to an element of x in the dtype of the statistics."""
    dtype = statistics_dtype(str(x.dtype))
    return lambda *i: cast(x(*i), dtype)


def _mean(x, axis, element, name):
    """Return the function from an index of x to the mean of ``element`` along ``axis``."""
    r = reduction(len(x.shape), axis)
    shape = r.shape(x.shape)
    total = reduced(x, r, shape, te.sum, lambda i: element(*i), f"{name}_sum")
    n = tirx.const(float(max(int(x.shape[r.axes[0]]), 1)), str(total.dtype))
    mean = te.compute(shape, lambda *i: total(*i) / n, name=name)
    return lambda *i: mean(*result_index(r, i))


def _inverse(x, axis, eps):
    """Return the function from an index of x to 1 / sqrt(mean(x²) + eps)."""
    r, source = reduction(len(x.shape), axis), _wide(x)
    shape, wide = r.shape(x.shape), statistics_dtype(str(x.dtype))
    total = reduced(x, r, shape, te.sum, lambda i: source(*i) * source(*i), "squares")
    n = tirx.const(float(max(int(x.shape[r.axes[0]]), 1)), wide)
    one, eps = tirx.const(1.0, wide), tirx.const(eps, wide)
    inverse = te.compute(shape, lambda *i: one / te.sqrt(total(*i) / n + eps), name="inverse")
    return lambda *i: inverse(*result_index(r, i))


@compute(op.rms_norm, COMM_REDUCE)
def rms_norm(x, scale, bias, axis, eps):
    axis %= len(x.shape)
    source, inverse = _wide(x), _inverse(x, axis, eps)

    def element(*i):
        value = source(*i) * inverse(*i)
        if scale is not None:
            value = value * _wide(scale)(i[axis])
        if bias is not None:
            value = value + _wide(bias)(i[axis])
        return cast(value, x.dtype)

    return te.compute(x.shape, element, name="y")


@compute(op.rms_norm_dx, OPAQUE)
def rms_norm_dx(x, scale, dy, axis, eps):
    axis %= len(x.shape)
    source, slope, inverse = _wide(x), _wide(dy), _inverse(x, axis, eps)

    def xhat(*i):
        return source(*i) * inverse(*i)

    def g(*i):
        return slope(*i) if scale is None else slope(*i) * _wide(scale)(i[axis])

    along = _mean(x, axis, lambda *i: g(*i) * xhat(*i), "along")
    dx = te.compute(
        x.shape, lambda *i: cast((g(*i) - xhat(*i) * along(*i)) * inverse(*i), x.dtype), name="dx"
    )
    if scale is None:
        return dx
    others = reduction(len(x.shape), axis, exclude=True)
    total = reduced(x, others, scale.shape, te.sum, lambda i: slope(*i) * xhat(*i), "dscale")
    return dx, te.compute(scale.shape, lambda c: cast(total(c), scale.dtype), name="rounded")
