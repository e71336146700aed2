"""Activation functions in TE. Half precision is computed in float32."""

from tvm import te, tirx

from meta import op
from meta.dialect.tvm.broadcast import broadcast, cast, computing, constant, elementwise, is_nan
from meta.dialect.tvm.c_math import expm1, log1p
from meta.dialect.tvm.compute import BROADCAST, ELEMWISE, INJECTIVE, compute
from meta.dialect.tvm.unary import _sigmoid


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
