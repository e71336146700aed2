"""Softmax and bias in tensor expressions. Half precision is computed in float32. Add one here."""

from tvm import te, tirx

from meta import op
from meta.dialect.tvm.broadcast import cast, computing
from meta.dialect.tvm.compute import BROADCAST, COMM_REDUCE, compute
from meta.dialect.tvm.reduce import reduced, result_index
from meta.op.core.reduction import reduction


def _rows(x, axis):
    """Return the reduction along ``axis`` and the shape of its result."""
    r = reduction(len(x.shape), axis)
    return r, r.shape(x.shape)


def _shifted(x, axis):
    """Return the function from an index to x - max(x) along ``axis``, in the computing dtype."""
    r, shape = _rows(x, axis)
    wide = computing(x.dtype)
    largest = reduced(x, r, shape, te.max, lambda i: cast(x(*i), wide), "largest")
    return lambda *i: cast(x(*i), wide) - largest(*result_index(r, i))


def _sum(x, axis, element):
    """Return the sum of ``element(*index)`` along ``axis``, an array."""
    r, shape = _rows(x, axis)
    return reduced(x, r, shape, te.sum, lambda i: element(*i), "total")


def _summed(x, axis, element):
    """Return the function from an index of x to the sum of ``element(*index)`` along ``axis``."""
    total, (r, _) = _sum(x, axis, element), _rows(x, axis)
    return lambda *i: total(*result_index(r, i))


@compute(op.softmax, COMM_REDUCE)
def softmax(x, axis):
    shifted = _shifted(x, axis)
    power = te.compute(x.shape, lambda *i: te.exp(shifted(*i)), name="power")
    total = _sum(x, axis, power)
    # One division for each row: dividing every element took as long as the exponentials.
    r, shape = _rows(x, axis)
    inverse = te.compute(shape, lambda *i: tirx.const(1, total.dtype) / total(*i), name="inverse")
    return te.compute(
        x.shape, lambda *i: cast(power(*i) * inverse(*result_index(r, i)), x.dtype), name="softmax"
    )


@compute(op.log_softmax, COMM_REDUCE)
def log_softmax(x, axis):
    shifted = _shifted(x, axis)
    total = _summed(x, axis, lambda *i: te.exp(shifted(*i)))
    return te.compute(
        x.shape, lambda *i: cast(shifted(*i) - te.log(total(*i)), x.dtype), name="log_softmax"
    )


@compute(op.softmax_dx, COMM_REDUCE)
def softmax_dx(y, dy, axis):
    wide = computing(y.dtype)
    total = _summed(y, axis, lambda *i: cast(y(*i), wide) * cast(dy(*i), wide))

    def gradient(*i):
        return cast(cast(y(*i), wide) * (cast(dy(*i), wide) - total(*i)), y.dtype)

    return te.compute(y.shape, gradient, name="softmax_dx")


@compute(op.log_softmax_dx, COMM_REDUCE)
def log_softmax_dx(y, dy, axis):
    wide = computing(y.dtype)
    total = _summed(y, axis, lambda *i: cast(dy(*i), wide))

    def gradient(*i):
        return cast(cast(dy(*i), wide) - te.exp(cast(y(*i), wide)) * total(*i), y.dtype)

    return te.compute(y.shape, gradient, name="log_softmax_dx")


@compute(op.bias_add, BROADCAST)
def bias_add(x, bias, axis):
    wide = computing(x.dtype)
    axis %= len(x.shape)

    def element(*i):
        return cast(cast(x(*i), wide) + cast(bias(i[axis]), wide), x.dtype)

    return te.compute(x.shape, element, name="bias_add")
