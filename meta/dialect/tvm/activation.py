"""Activation functions and softmax in TE."""

import math

from tvm import te, tirx

from meta import op
from meta.dialect.tvm.broadcast import (
    broadcast,
    cast,
    computing,
    constant,
    elementwise,
    is_nan,
    times_derivative,
)
from meta.dialect.tvm.c_math import expm1, log1p
from meta.dialect.tvm.compute import BROADCAST, COMM_REDUCE, ELEMWISE, INJECTIVE, compute, table
from meta.dialect.tvm.reduce import reduced, result_index
from meta.op.activation import SELU_ALPHA, SELU_SCALE
from meta.op.core.reduction import reduction

table(
    {
        op.softsign: lambda v: v / (constant(1, v) + tirx.abs(v)),
        op.tanhshrink: lambda v: v - tirx.tanh(v),
        op.tanh: tirx.tanh,
    }
)


@compute(op.silu, ELEMWISE)
def silu(x, out):
    return elementwise(lambda v: v * _sigmoid(v), x, dtype=out.dtype)


@compute(op.silu_dx, ELEMWISE)
def silu_dx(x, dy, out):
    def slope(v, d):
        s, one = _sigmoid(v), constant(1, v)
        return d * s * (one + v * (one - s))

    return elementwise(slope, x, dy, dtype=out.dtype)


@compute(op.leaky_relu, ELEMWISE)
def leaky_relu(x, negative_slope, out):
    def leaky(v, slope):
        return tirx.Select(v > constant(0, v), v, v * slope)

    return elementwise(leaky, x, negative_slope, dtype=out.dtype)


@compute(op.leaky_relu_dx, ELEMWISE)
def leaky_relu_dx(x, dy, negative_slope, out):
    def leaky(v, d, slope):
        return tirx.Select(v > constant(0, v), d, d * slope)

    return elementwise(leaky, x, dy, negative_slope, dtype=out.dtype)


@compute(op.elu, ELEMWISE)
def elu(x, alpha, out):
    def elu(v, alpha):
        return tirx.Select(v < constant(0, v), alpha * expm1(v), v)

    return elementwise(elu, x, alpha, dtype=out.dtype)


@compute(op.elu_dx, ELEMWISE)
def elu_dx(x, dy, alpha, out):
    def slope(v, d, alpha):
        return tirx.Select(v > constant(0, v), d, d * alpha * tirx.exp(v))

    return elementwise(slope, x, dy, alpha, dtype=out.dtype)


@compute(op.softplus, ELEMWISE)
def softplus(x, beta, threshold, out):
    def softplus(v, beta, threshold):
        # log(1 + e**z) = max(z, 0) + log(1 + e**-|z|), which never overflows.
        z, zero = v * beta, constant(0, v)
        soft = tirx.Select(z > zero, z, zero) + log1p(tirx.exp(zero - tirx.abs(z)))
        return tirx.Select(z > threshold, v, soft / beta)

    return elementwise(softplus, x, beta, threshold, dtype=out.dtype)


@compute(op.softplus_dx, ELEMWISE)
def softplus_dx(x, dy, beta, threshold, out):
    def slope(v, d, beta, threshold):
        return tirx.Select(v * beta > threshold, d, d * _sigmoid(v * beta))

    return elementwise(slope, x, dy, beta, threshold, dtype=out.dtype)


def _clamped(v, low, high):
    """min(max(v, low), high); comparisons with a NaN are false, which keeps that of v."""
    v = tirx.Select(v < low, low, v)
    return tirx.Select(v > high, high, v)


@compute(op.hardswish, ELEMWISE)
def hardswish(x, out):
    def hardswish(v):
        three, six = constant(3, v), constant(6, v)
        return v * _clamped(v + three, constant(0, v), six) / six

    return elementwise(hardswish, x, dtype=out.dtype)


@compute(op.hardswish_dx, ELEMWISE)
def hardswish_dx(x, dy, out):
    def slope(v, d):
        three = constant(3, v)
        inner = d * (v / three + constant(0.5, v))
        upper = tirx.Select(v < three, inner, d)
        return tirx.Select(v <= constant(-3, v), constant(0, v), upper)

    return elementwise(slope, x, dy, dtype=out.dtype)


@compute(op.prelu, BROADCAST, static=True)
def prelu(x, weight, out):
    inner = computing(out.dtype)

    def of_index(*index):
        if len(weight.shape) == 0:
            slope = weight()
        elif len(index) > 1 and int(weight.shape[0]) != 1:
            slope = weight(index[1])
        else:
            slope = weight(0)
        v = cast(x(*index), inner)
        return cast(tirx.Select(v > constant(0, v), v, v * cast(slope, inner)), out.dtype)

    return te.compute(x.shape, of_index, name="prelu")


@compute(op.glu, INJECTIVE)
def glu(x, axis, out):
    at = axis % len(x.shape)
    half = out.shape[at]
    inner = computing(out.dtype)

    def gated(*index):
        gate = cast(x(*index[:at], index[at] + half, *index[at + 1 :]), inner)
        return cast(cast(x(*index), inner) * _sigmoid(gate), out.dtype)

    return te.compute(out.static_shape, gated, name="glu")


@compute(op.threshold, ELEMWISE)
def threshold(x, threshold, value, out):
    def choose(v, bound, instead):
        # Both numbers are rounded to the dtype of x, in which they are compared with it.
        bound, instead = cast(bound, out.dtype), cast(instead, out.dtype)
        inner = computing(out.dtype)
        return tirx.Select(cast(v, inner) <= cast(bound, inner), instead, v)

    return broadcast(choose, x, threshold, value, dtype=out.dtype)


@compute(op.threshold_dx, ELEMWISE)
def threshold_dx(x, dy, threshold, out):
    def choose(v, d, bound):
        inner = computing(out.dtype)
        below = cast(v, inner) <= cast(cast(bound, out.dtype), inner)
        return tirx.Select(below, constant(0, v), d)

    return broadcast(choose, x, dy, threshold, dtype=out.dtype)


@compute(op.clip, ELEMWISE)
def clip(x, a_min, a_max, out):
    def clipped(v, low, high):
        low, high = cast(low, out.dtype), cast(high, out.dtype)
        inner = computing(out.dtype)
        v, low, high = cast(v, inner), cast(low, inner), cast(high, inner)
        undefined = tirx.Or(is_nan(low), is_nan(high))
        return tirx.Select(undefined, low + high, _clamped(v, low, high))

    return broadcast(clipped, x, a_min, a_max, dtype=out.dtype)


@compute(op.clip_dx, ELEMWISE)
def clip_dx(x, dy, a_min, a_max, out):
    def inside(v, d, low, high):
        inner = computing(out.dtype)
        low, high = (cast(cast(n, out.dtype), inner) for n in (low, high))
        v = cast(v, inner)
        taken = tirx.And(v >= low, v <= high)
        return tirx.Select(taken, d, constant(0, d))

    return broadcast(inside, x, dy, a_min, a_max, dtype=out.dtype)


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


@compute(op.relu, ELEMWISE)
def relu(x, out):
    # The comparison is false for a NaN, which is kept.
    def relu(v):
        return tirx.Select(v < constant(0, v), constant(0, v), v)

    return elementwise(relu, x, dtype=out.dtype)


_GELU_SCALE, _GELU_CUBE = math.sqrt(2 / math.pi), 0.044715


def _gelu_inner(v):
    """tanh's argument in the approximation of gelu."""
    cube = constant(_GELU_CUBE, v) * v * v
    return constant(_GELU_SCALE, v) * v * (constant(1, v) + cube)


@compute(op.gelu, ELEMWISE)
def gelu(x, approximate, out):
    def gelu(v):
        if approximate == "tanh":
            distribution = constant(1, v) + tirx.tanh(_gelu_inner(v))
        else:
            distribution = constant(1, v) + tirx.erf(v * constant(math.sqrt(0.5), v))
        return v * constant(0.5, v) * distribution

    return elementwise(gelu, x, dtype=out.dtype)


@compute(op.sigmoid, ELEMWISE)
def sigmoid(x, out):
    return elementwise(_sigmoid, x, dtype=out.dtype)


def _sigmoid(v):
    # exp overflows to infinity for a large negative v; the quotient is then 0, as it should be.
    one = constant(1, v)
    return one / (one + tirx.exp(constant(0, v) - v))


def _relu_dx(v, d):
    return tirx.Select(v > constant(0, v), d, constant(0, d))


@compute(op.relu_dx, ELEMWISE)
def relu_dx(x, y, dy, out):
    return times_derivative(_relu_dx, _relu_dx, x, y, dy, out)


@compute(op.gelu_dx, ELEMWISE)
def gelu_dx(x, y, dy, approximate, out):
    def exact(v, d):
        below = constant(0.5, v) * (constant(1, v) + tirx.erf(v * constant(math.sqrt(0.5), v)))
        density = tirx.exp(v * v * constant(-0.5, v)) * constant(1 / math.sqrt(2 * math.pi), v)
        return d * (below + v * density)

    def by_tanh(v, d):
        one, half = constant(1, v), constant(0.5, v)
        t = tirx.tanh(_gelu_inner(v))
        cube = constant(3 * _GELU_CUBE, v) * v * v
        slope = constant(_GELU_SCALE, v) * (one + cube)
        return d * half * (one + t + v * (one - t * t) * slope)

    return times_derivative(by_tanh if approximate == "tanh" else exact, None, x, y, dy, out)


@compute(op.tanh_dx, ELEMWISE)
def tanh_dx(x, y, dy, out):
    def by_y(t, d):
        return d * (constant(1, t) - t * t)

    return times_derivative(lambda v, d: by_y(tirx.tanh(v), d), by_y, x, y, dy, out)


@compute(op.sigmoid_dx, ELEMWISE)
def sigmoid_dx(x, y, dy, out):
    def by_y(s, d):
        return d * s * (constant(1, s) - s)

    return times_derivative(lambda v, d: by_y(_sigmoid(v), d), by_y, x, y, dy, out)
