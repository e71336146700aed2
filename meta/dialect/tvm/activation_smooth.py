"""Smooth activation functions and shrinkages in TE. Half precision is computed in float32."""

from tvm import tirx

from meta import op
from meta.dialect.tvm.broadcast import constant, elementwise, is_nan
from meta.dialect.tvm.c_math import expm1, log1p
from meta.dialect.tvm.compute import ELEMWISE, compute
from meta.op.activation_smooth import SELU_ALPHA, SELU_SCALE


def _gate(v):
    """tanh(log(1 + e**v)) = n / (n + 2) with n = e**v * (e**v + 2), of e**-|v| only."""
    one, two = constant(1, v), constant(2, v)
    e = tirx.exp(constant(0, v) - tirx.abs(v))
    positive = (one + two * e) / (one + two * e + two * e * e)
    negative = e * (e + two) / (e * (e + two) + two)
    return tirx.Select(v > constant(0, v), positive, negative)


@compute(op.mish, ELEMWISE)
def mish(x, out):
    return elementwise(lambda v: v * _gate(v), x, dtype=out.dtype)


@compute(op.mish_dx, ELEMWISE)
def mish_dx(x, dy, out):
    def slope(v, d):
        w, one = _gate(v), constant(1, v)
        s = one / (one + tirx.exp(constant(0, v) - v))
        return d * (w + v * (one - w * w) * s)

    return elementwise(slope, x, dy, dtype=out.dtype)


@compute(op.selu, ELEMWISE)
def selu(x, out):
    def selu(v):
        below = constant(SELU_SCALE * SELU_ALPHA, v) * expm1(v)
        return tirx.Select(v < constant(0, v), below, constant(SELU_SCALE, v) * v)

    return elementwise(selu, x, dtype=out.dtype)


@compute(op.celu, ELEMWISE)
def celu(x, alpha, out):
    def celu(v, alpha):
        return tirx.Select(v < constant(0, v), alpha * expm1(v / alpha), v)

    return elementwise(celu, x, alpha, dtype=out.dtype)


@compute(op.softsign, ELEMWISE)
def softsign(x, out):
    return elementwise(lambda v: v / (constant(1, v) + tirx.abs(v)), x, dtype=out.dtype)


@compute(op.tanhshrink, ELEMWISE)
def tanhshrink(x, out):
    return elementwise(lambda v: v - tirx.tanh(v), x, dtype=out.dtype)


@compute(op.logsigmoid, ELEMWISE)
def logsigmoid(x, out):
    def logsigmoid(v):
        zero = constant(0, v)
        return tirx.Select(v < zero, v, zero) - log1p(tirx.exp(zero - tirx.abs(v)))

    return elementwise(logsigmoid, x, dtype=out.dtype)


def _up_to_six(v):
    """min(max(v, 0), 6); comparisons with a NaN are false, which keeps it."""
    zero, six = constant(0, v), constant(6, v)
    return tirx.Select(v < zero, zero, tirx.Select(v > six, six, v))


@compute(op.hardsigmoid, ELEMWISE)
def hardsigmoid(x, out):
    def hardsigmoid(v):
        return _up_to_six(v + constant(3, v)) / constant(6, v)

    return elementwise(hardsigmoid, x, dtype=out.dtype)


@compute(op.relu6, ELEMWISE)
def relu6(x, out):
    return elementwise(_up_to_six, x, dtype=out.dtype)


@compute(op.softshrink, ELEMWISE)
def softshrink(x, lambd, out):
    def softshrink(v, bound):
        zero = constant(0, v)
        inside = tirx.Select(is_nan(v), v, zero)
        below = tirx.Select(v < zero - bound, v + bound, inside)
        return tirx.Select(v > bound, v - bound, below)

    return elementwise(softshrink, x, lambd, dtype=out.dtype)


@compute(op.hardshrink, ELEMWISE)
def hardshrink(x, lambd, out):
    def hardshrink(v, bound):
        return tirx.Select(tirx.abs(v) <= bound, constant(0, v), v)

    return elementwise(hardshrink, x, lambd, dtype=out.dtype)
