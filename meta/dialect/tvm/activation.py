"""Activation functions and softmax in TE."""

import math

from tvm import te, tirx

from meta import op
from meta.dialect.tvm.broadcast import cast, computing, constant, is_nan
from meta.dialect.tvm.c_math import expm1, log1p
from meta.dialect.tvm.compute import BROADCAST, COMM_REDUCE, INJECTIVE, compute, pointwise, table
from meta.dialect.tvm.reduce import Over
from meta.op.activation import SELU_ALPHA, SELU_SCALE


@pointwise(op.sigmoid)
def sigmoid(v):
    # exp overflows to infinity for a large negative v; the quotient is then 0, as it should be.
    one = constant(1, v)
    return one / (one + tirx.exp(constant(0, v) - v))


def _gate(v):
    """tanh(log(1 + e**v)) = n / (n + 2) with n = e**v * (e**v + 2), of e**-|v| only."""
    one, two = constant(1, v), constant(2, v)
    e = tirx.exp(constant(0, v) - tirx.abs(v))
    positive = (one + two * e) / (one + two * e + two * e * e)
    negative = e * (e + two) / (e * (e + two) + two)
    return tirx.Select(v > constant(0, v), positive, negative)


table(
    {
        op.softsign: lambda v: v / (constant(1, v) + tirx.abs(v)),
        op.tanhshrink: lambda v: v - tirx.tanh(v),
        op.tanh: tirx.tanh,
        op.silu: lambda v: v * sigmoid(v),
        op.mish: lambda v: v * _gate(v),
        # Comparisons are false for a NaN, which is kept.
        op.relu: lambda v: tirx.Select(v < constant(0, v), constant(0, v), v),
        op.leaky_relu: lambda v, slope: tirx.Select(v > constant(0, v), v, v * slope),
        op.leaky_relu_dx: lambda v, d, slope: tirx.Select(v > constant(0, v), d, d * slope),
        op.elu: lambda v, a: tirx.Select(v < constant(0, v), a * expm1(v), v),
        op.elu_dx: lambda v, d, a: tirx.Select(v <= constant(0, v), d * a * tirx.exp(v), d),
        op.celu: lambda v, a: tirx.Select(v < constant(0, v), a * expm1(v / a), v),
        op.hardshrink: lambda v, b: tirx.Select(tirx.abs(v) <= b, constant(0, v), v),
        op.softplus_dx: lambda v, d, b, t: tirx.Select(v * b > t, d, d * sigmoid(v * b)),
    }
)


@pointwise(op.silu_dx)
def silu_dx(v, d):
    s, one = sigmoid(v), constant(1, v)
    return d * s * (one + v * (one - s))


@pointwise(op.softplus)
def softplus(v, beta, threshold):
    # log(1 + e**z) = max(z, 0) + log(1 + e**-|z|), which never overflows.
    z, zero = v * beta, constant(0, v)
    soft = tirx.Select(z > zero, z, zero) + log1p(tirx.exp(zero - tirx.abs(z)))
    return tirx.Select(z > threshold, v, soft / beta)


def _clamped(v, low, high):
    """min(max(v, low), high); comparisons with a NaN are false, which keeps that of v."""
    v = tirx.Select(v < low, low, v)
    return tirx.Select(v > high, high, v)


@pointwise(op.hardswish)
def hardswish(v):
    three, six = constant(3, v), constant(6, v)
    return v * _clamped(v + three, constant(0, v), six) / six


@pointwise(op.hardswish_dx)
def hardswish_dx(v, d):
    three = constant(3, v)
    inner = d * (v / three + constant(0.5, v))
    upper = tirx.Select(v < three, inner, d)
    return tirx.Select(v <= constant(-3, v), constant(0, v), upper)


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
        return cast(cast(x(*index), inner) * sigmoid(gate), out.dtype)

    return te.compute(out.static_shape, gated, name="glu")


@pointwise(op.threshold, raw=True)
def threshold(v, bound, instead, *, out):
    # Both numbers are rounded to the dtype of x, in which they are compared with it.
    bound, instead = cast(bound, out.dtype), cast(instead, out.dtype)
    inner = computing(out.dtype)
    return tirx.Select(cast(v, inner) <= cast(bound, inner), instead, v)


@pointwise(op.threshold_dx, raw=True)
def threshold_dx(v, d, bound, *, out):
    inner = computing(out.dtype)
    below = cast(v, inner) <= cast(cast(bound, out.dtype), inner)
    return tirx.Select(below, constant(0, v), d)


@pointwise(op.clip, raw=True)
def clip(v, low, high, *, out):
    inner = computing(out.dtype)
    low, high = (cast(cast(n, out.dtype), inner) for n in (low, high))
    v = cast(v, inner)
    undefined = tirx.Or(is_nan(low), is_nan(high))
    return tirx.Select(undefined, low + high, _clamped(v, low, high))


@pointwise(op.clip_dx, raw=True)
def clip_dx(v, d, low, high, *, out):
    inner = computing(out.dtype)
    low, high = (cast(cast(n, out.dtype), inner) for n in (low, high))
    taken = tirx.And(cast(v, inner) >= low, cast(v, inner) <= high)
    return tirx.Select(taken, d, constant(0, d))


@pointwise(op.mish_dx)
def mish_dx(v, d):
    w, one = _gate(v), constant(1, v)
    return d * (w + v * (one - w * w) * sigmoid(v))


@pointwise(op.selu)
def selu(v):
    below = constant(SELU_SCALE * SELU_ALPHA, v) * expm1(v)
    return tirx.Select(v < constant(0, v), below, constant(SELU_SCALE, v) * v)


@pointwise(op.logsigmoid)
def logsigmoid(v):
    zero = constant(0, v)
    return tirx.Select(v < zero, v, zero) - log1p(tirx.exp(zero - tirx.abs(v)))


@pointwise(op.relu6)
def relu6(v):
    """min(max(v, 0), 6); comparisons with a NaN are false, which keeps it."""
    zero, six = constant(0, v), constant(6, v)
    return tirx.Select(v < zero, zero, tirx.Select(v > six, six, v))


@pointwise(op.hardsigmoid)
def hardsigmoid(v):
    return relu6(v + constant(3, v)) / constant(6, v)


@pointwise(op.softshrink)
def softshrink(v, bound):
    zero = constant(0, v)
    inside = tirx.Select(is_nan(v), v, zero)
    below = tirx.Select(v < zero - bound, v + bound, inside)
    return tirx.Select(v > bound, v - bound, below)


def shifted(over):
    """Return the function from an index to x less the largest element of its row."""
    source = over.element(over.x)
    largest = over.at(over.reduce(te.max, source, "largest"))
    return lambda *i: source(*i) - largest(*i)


@compute(op.softmax, COMM_REDUCE, static=False)
def softmax(x, axis):
    over = Over.of(x, axis)
    logit = shifted(over)
    power = te.compute(x.shape, lambda *i: te.exp(logit(*i)), name="power")
    total = over.sum(power, "total")
    # One division for each row: dividing every element took as long as the exponentials.
    one = tirx.const(1, total.dtype)
    inverse = over.at(te.compute(over.shape, lambda *i: one / total(*i), name="inverse"))
    return te.compute(x.shape, lambda *i: cast(power(*i) * inverse(*i), x.dtype), name="softmax")


@compute(op.log_softmax, COMM_REDUCE, static=False)
def log_softmax(x, axis):
    over = Over.of(x, axis)
    logit = shifted(over)
    total = over.at(over.sum(lambda *i: te.exp(logit(*i)), "total"))
    return te.compute(
        x.shape, lambda *i: cast(logit(*i) - te.log(total(*i)), x.dtype), name="log_softmax"
    )


def _gradient(name, summand, slope):
    """Return the kernel of slope(y, dy, total), total being the row's sum of summand(y, dy)."""

    def kernel(y, dy, axis):
        over = Over.of(y, axis)
        result, given = over.element(y), over.element(dy)
        total = over.at(over.sum(lambda *i: summand(result(*i), given(*i)), "total"))

        def element(*i):
            return cast(slope(result(*i), given(*i), total(*i)), y.dtype)

        return te.compute(y.shape, element, name=name)

    return kernel


compute(op.softmax_dx, COMM_REDUCE)(
    _gradient("softmax_dx", lambda y, d: y * d, lambda y, d, t: y * (d - t))
)
compute(op.log_softmax_dx, COMM_REDUCE)(
    _gradient("log_softmax_dx", lambda _, d: d, lambda y, d, t: d - te.exp(y) * t)
)


_GELU_SCALE, _GELU_CUBE = math.sqrt(2 / math.pi), 0.044715


def _gelu_inner(v):
    """tanh's argument in the approximation of gelu."""
    cube = constant(_GELU_CUBE, v) * v * v
    return constant(_GELU_SCALE, v) * v * (constant(1, v) + cube)


@pointwise(op.gelu)
def gelu(v, *, approximate):
    if approximate == "tanh":
        distribution = constant(1, v) + tirx.tanh(_gelu_inner(v))
    else:
        distribution = constant(1, v) + tirx.erf(v * constant(math.sqrt(0.5), v))
    return v * constant(0.5, v) * distribution


@pointwise(op.relu_dx)
def relu_dx(v, y, d):
    return tirx.Select((v if y is None else y) <= constant(0, d), constant(0, d), d)


@pointwise(op.gelu_dx)
def gelu_dx(v, _, d, *, approximate):
    one, half = constant(1, v), constant(0.5, v)
    if approximate == "tanh":
        t = tirx.tanh(_gelu_inner(v))
        cube = constant(3 * _GELU_CUBE, v) * v * v
        slope = constant(_GELU_SCALE, v) * (one + cube)
        return d * half * (one + t + v * (one - t * t) * slope)
    below = half * (one + tirx.erf(v * constant(math.sqrt(0.5), v)))
    density = tirx.exp(v * v * constant(-0.5, v)) * constant(1 / math.sqrt(2 * math.pi), v)
    return d * (below + v * density)


@pointwise(op.tanh_dx)
def tanh_dx(v, t, d):
    t = tirx.tanh(v) if t is None else t
    return d * (constant(1, t) - t * t)


@pointwise(op.sigmoid_dx)
def sigmoid_dx(v, s, d):
    s = sigmoid(v) if s is None else s
    return d * s * (constant(1, s) - s)
