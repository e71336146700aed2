"""Exporters of elementwise functions, activations and comparisons, and of casts."""

from __future__ import annotations

import math

from meta import op
from meta.base.dtype import FLOAT8, UNSIGNED, is_float, limits, truncation_dtype
from meta.frontend.onnx.export.graph import kind_of
from meta.frontend.onnx.export.registry import cast, exports, forms


@exports(op.astype)
def astype(g, x, dtype):
    """What is beyond an integer's range ONNX leaves to the runtime: floats go by way of the integer
    by which ours go, as x86 processors have it.
    """
    if is_float(x.dtype) and "int" in dtype and dtype != "uint64":
        x = _cast(g, x, truncation_dtype(dtype))
    if dtype == "float8_e4m3fn" and x.dtype != dtype:
        x = op.clip(cast(x, "float32"), -limits(dtype).max, limits(dtype).max)
    return _cast(g, x, dtype, saturate=0 if dtype in FLOAT8 else None)


def _cast(g, x, dtype, **attributes):
    if x.dtype == dtype:
        return x
    return g.node("Cast", x, type=x.type.with_dtype(dtype), to=kind_of(dtype), **attributes)


def _float_only(form, otherwise):
    """A form of floating point numbers, and what integers give."""
    return lambda g, x, *args: (form if is_float(x.dtype) else otherwise)(g, x, *args)


def _same(_, x, *options):
    return x


def _false(_, x):
    return op.zeros_like(x, "bool")


def _is_inf(negative, positive):
    detect = {"detect_negative": negative, "detect_positive": positive}
    return _float_only(lambda g, x: g.node("IsInf", x, **detect), _false)


def _choose(operator, **attributes):
    return lambda g, *xs: g.node(operator, *xs, **attributes)


def _expm1(x):
    t = op.tanh(x * 0.5)
    return op.where(op.less(op.abs(x), 1.0), 2.0 * t / (1.0 - t), op.exp(x) - 1.0)


def _log1p(x):
    """Kahan's: by what 1 + x is off, its logarithm is off, too."""
    total = x + 1.0
    part = total - 1.0
    none = op.equal(part, 0.0)
    found = op.log(total) * (x / op.where(none, 1.0, part))
    return op.where(none, x, op.where(op.equal(total, math.inf), total, found))


def _softplus(x):
    return op.maximum(x, 0.0) + _log1p(op.exp(-op.abs(x)))


def _log_sum(a, b, exp, factor=1.0):
    top, low = op.maximum(a, b), op.minimum(a, b)
    return op.where(op.isinf(top), top, top + _log1p(exp(low - top)) * factor)


def _nan_to_num(_, x, nan, high, low):
    x = op.where(op.isnan(x), nan, x)
    x = op.where(op.equal(x, math.inf), limits(x.dtype).max if high is None else high, x)
    return op.where(op.equal(x, -math.inf), limits(x.dtype).min if low is None else low, x)


def _product_of_log(log):
    """x * log(y), and 0 for x = 0 beside any number."""

    def form(_, x, y):
        none = op.logical_and(op.equal(x, 0.0), op.logical_not(op.isnan(y)))
        return op.where(none, 0.0, x * log(y))

    return form


def _gelu(_, x, approximate):
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    share = op.tanh(inner) if approximate == "tanh" else op.erf(x * math.sqrt(0.5))
    return 0.5 * x * (share + 1.0)


def _hypot(_, a, b):
    a, b = op.abs(a), op.abs(b)
    top = op.maximum(a, b)
    scale = op.where(op.logical_or(op.equal(top, 0.0), op.isinf(top)), 1.0, top)
    found = scale * op.sqrt(op.square(a / scale) + op.square(b / scale))
    return op.where(op.logical_or(op.isinf(a), op.isinf(b)), math.inf, found)


def _sinc(_, x):
    none = op.equal(x, 0.0)
    angle = op.where(none, 1.0, x * math.pi)
    return op.where(none, 1.0, op.sin(angle) / angle)


def _entr(_, x):
    found = -x * op.log(op.where(op.greater(x, 0.0), x, 1.0))
    return op.where(op.less(x, 0.0), -math.inf, op.where(op.isnan(x), x, found))


def _lerp(_, x, end, weight):
    near, far = x + weight * (end - x), end - (end - x) * (1.0 - weight)
    return op.where(op.less(op.abs(weight), 0.5), near, far)


def _atan2(_, y, x):
    """The angle of |y| and |x|, moved to the quadrant; of two infinite ones, or two zeros, it is
    that of 1 and 1, or 0 and 1.
    """
    up, right = op.abs(y), op.abs(x)
    infinite = op.logical_and(op.isinf(up), op.isinf(right))
    none = op.equal(op.maximum(up, right), 0.0)
    angle = op.atan(op.where(infinite, 1.0, op.where(none, 0.0, up / right)))
    return _with_sign(op.where(_is_negative(x), math.pi - angle, angle), y)


def _is_negative(x):
    """Whether a number, or a zero, has the sign: a NaN has none here."""
    none = op.logical_and(op.equal(x, 0.0), op.less(op.reciprocal(x), 0.0))
    return op.logical_or(op.less(x, 0.0), none)


def _with_sign(x, sign):
    x = op.abs(x)
    return op.where(_is_negative(sign), op.negative(x), x)


def _celu(x, alpha):
    return op.where(op.greater(x, 0.0), x, alpha * _expm1(x / alpha))


def _shrunk(_, x, lambd):
    low = op.where(op.less(x, -lambd), x + lambd, x * 0.0)
    return op.where(op.greater(x, lambd), x - lambd, low)


forms(
    wide=True,
    addcdiv=lambda _, x, a, b, value: x + value * (a / b),
    atan2=_atan2,
    celu=lambda _, x, alpha: _celu(x, alpha),
    copysign=lambda _, x, sign: _with_sign(x, sign),
    deg2rad=lambda _, x: x * (math.pi / 180),
    divide=_choose("Div"),
    elu=lambda _, x, alpha: op.where(op.greater(x, 0.0), x, alpha * _expm1(x)),
    entr=_entr,
    erfc=lambda _, x: 1.0 - op.erf(x),
    exp2=lambda _, x: op.pow(op.full_like(x, 2.0), x),
    expm1=lambda _, x: _expm1(x),
    frac=lambda _, x: x - op.trunc(x),
    gelu=_gelu,
    hardshrink=lambda _, x, lambd: op.where(op.less_equal(op.abs(x), lambd), 0.0, x),
    hardsigmoid=lambda _, x: op.clip(x + 3.0, 0.0, 6.0) / 6.0,
    hardswish=lambda _, x: x * (op.clip(x + 3.0, 0.0, 6.0) / 6.0),
    hypot=_hypot,
    ldexp=lambda _, x, n: x * op.pow(op.full_like(n, 2.0), n),
    leaky_relu=lambda _, x, slope: op.where(op.greater(x, 0.0), x, x * slope),
    lerp=_lerp,
    log10=lambda _, x: op.log(x) * math.log10(math.e),
    log1p=lambda _, x: _log1p(x),
    log2=lambda _, x: op.log(x) * math.log2(math.e),
    logaddexp=lambda _, a, b: _log_sum(a, b, op.exp),
    logaddexp2=lambda _, a, b: _log_sum(a, b, op.exp2, math.log2(math.e)),
    logit=lambda _, x, eps: (
        lambda y: op.log(y / (1.0 - y)))(x if eps is None else op.clip(x, eps, 1.0 - eps)),
    logsigmoid=lambda _, x: -_softplus(-x),
    mish=lambda _, x: x * op.tanh(_softplus(x)),
    nan_to_num=_float_only(_nan_to_num, _same),
    ndtr=lambda _, x: 0.5 * (op.erf(x * math.sqrt(0.5)) + 1.0),
    rad2deg=lambda _, x: x * (180 / math.pi),
    rsqrt=lambda _, x: op.reciprocal(op.sqrt(x)),
    selu=lambda _, x: 1.0507009873554805 * op.where(
        op.greater(x, 0.0), x, 1.6732632423543772 * _expm1(x)),
    silu=lambda _, x: x * op.sigmoid(x),
    sinc=_sinc,
    softplus=lambda _, x, beta, threshold: op.where(
        op.greater(x * beta, threshold), x, _softplus(x * beta) / beta),
    softshrink=_shrunk,
    tanhshrink=lambda _, x: x - op.tanh(x),
    xlog1py=_product_of_log(_log1p),
    xlogy=_product_of_log(op.log),
)  # fmt: skip


def _sum_where(operate):
    """What is left out of a sum is ``otherwise``, which may be of a wider dtype."""

    def form(g, a, b, otherwise, where):
        total, other = (cast(v, g.result.dtype) for v in (operate(a, b), otherwise))
        return op.where(where, total, other)

    return form


def _heaviside(_, a, b):
    none = op.zeros_like(a)
    return op.where(op.equal(a, none), b, cast(op.greater(a, none), a.dtype))


def _without_nan(choose):
    return lambda _, a, b: op.where(op.isnan(a), b, op.where(op.isnan(b), a, choose(a, b)))


def _is_close(_, a, b, rtol, atol, equal_nan):
    wide = a.dtype if a.dtype in ("float32", "float64") else "float64"
    a, b = cast(a, wide), cast(b, wide)
    apart = op.abs(a - b)
    near = op.logical_and(op.isfinite(apart), op.less_equal(apart, op.abs(b * rtol) + atol))
    found = op.logical_or(op.equal(a, b), near)
    return op.logical_or(found, op.logical_and(op.isnan(a), op.isnan(b))) if equal_nan else found


def _prelu(_, x, weight):
    if weight.ndim == 1 and x.ndim != 1:
        weight = op.reshape(weight, (-1, *(1,) * (x.ndim - 2)) if x.ndim else ())
    return op.where(op.greater(x, 0.0), x, x * weight)


def _clip(g, x, low, high):
    if math.isnan(low) or math.isnan(high):
        return op.minimum(op.maximum(x, low), high)
    return g.node("Clip", x, low, high)


def _threshold(g, x, least, value):
    """A NaN stays, which ONNX's ThresholdedRelu leaves open."""
    return op.where(op.less_equal(x, g.constant(least, x.dtype)), g.constant(value, x.dtype), x)


def _glu(_, x, axis):
    a, b = op.split(x, 2, axis)
    return a * op.sigmoid(b)


def _shifted(g, x, n, direction):
    """ONNX shifts unsigned integers."""
    dtype = x.dtype if x.dtype in UNSIGNED else f"u{x.dtype}"
    type_ = g.result.with_dtype(dtype)
    y = g.node("BitShift", cast(x, dtype), cast(n, dtype), type=type_, direction=direction)
    return cast(y, x.dtype)


def _right_shift(g, x, n):
    """Of a number below 0 that of its complement."""
    if x.dtype in UNSIGNED:
        return _shifted(g, x, n, "RIGHT")
    below = op.less(x, 0)
    found = _shifted(g, op.where(below, op.bitwise_invert(x), x), n, "RIGHT")
    return op.where(below, op.bitwise_invert(found), found)


def _of_integers(g, operator, a, b, by_minus_one, **attributes):
    """Write a quotient or a rest. Processors fail at the least integer by -1."""
    known = g.numbers(b)
    if b.dtype in UNSIGNED or (known is not None and not bool((known == -1).any())):
        return g.node(operator, a, b, **attributes)
    minus = op.equal(b, -1)
    found = g.node(operator, a, op.where(minus, 1, b), **attributes)
    return op.where(minus, by_minus_one, found)


def _across(rest, divisor):
    """Whether a rest has another sign than the divisor."""
    none = op.zeros_like(rest)
    differ = op.not_equal(op.less(rest, none), op.less(divisor, none))
    return op.logical_and(op.not_equal(rest, none), differ)


@exports(op.floor_divide)
def floor_divide(g, a, b):
    """ONNX divides integers without the fraction."""
    if is_float(a.dtype):
        near = op.floor((a - op.remainder(a, b)) / b + 0.5)
        return op.where(op.logical_or(op.equal(b, 0.0), op.isinf(a)), a / b, near)
    found = _of_integers(g, "Div", a, b, op.negative(a))
    return found if a.dtype in UNSIGNED else found - cast(_across(a - found * b, b), a.dtype)


@exports(op.remainder)
def remainder(g, a, b):
    if not is_float(a.dtype):
        return _of_integers(g, "Mod", a, b, 0)
    rest = op.fmod(a, b)
    return op.where(_across(rest, b), rest + b, rest)


@exports(op.fmod)
def fmod(g, a, b):
    if is_float(a.dtype):
        return g.node("Mod", a, b, fmod=1)
    return _of_integers(g, "Mod", a, b, 0, fmod=1)


def _along(operator):
    return lambda g, x, axis: g.node(operator, x, axis=axis) if x.ndim else x * 0.0 + (
        1.0 if operator == "Softmax" else 0.0)  # fmt: skip


forms(
    add=_sum_where(op.add),
    addcmul=lambda _, x, a, b, value: x + op.multiply(a, value) * b,
    bitwise_invert=_choose("Not"),
    bitwise_left_shift=lambda g, x, n: _shifted(g, x, n, "LEFT"),
    bitwise_right_shift=_right_shift,
    cast_like=lambda _, x, like: cast(x, like.dtype),
    ceil=_same,
    clip=_clip,
    copy=_same,
    detach=_same,
    floor=_same,
    fmax=_without_nan(op.maximum),
    fmin=_without_nan(op.minimum),
    glu=_glu,
    heaviside=_heaviside,
    isclose=_is_close,
    isfinite=lambda _, x: op.logical_not(op.logical_or(op.isinf(x), op.isnan(x))),
    isinf=_is_inf(1, 1),
    isnan=_float_only(_choose("IsNaN"), _false),
    isneginf=_is_inf(1, 0),
    isposinf=_is_inf(0, 1),
    log_softmax=_along("LogSoftmax"),
    maximum=_choose("Max"),
    minimum=_choose("Min"),
    negative=lambda _, x: op.subtract(op.zeros_like(x), x),
    not_equal=lambda _, a, b: op.logical_not(op.equal(a, b)),
    pow=_choose("Pow"),
    prelu=_prelu,
    reinterpret=lambda g, x, dtype: g.node("BitCast", x, to=kind_of(dtype)),
    relu6=lambda _, x: op.clip(x, 0.0, 6.0),
    round=_same,
    signbit=_float_only(lambda _, x: _is_negative(x), lambda _, x: op.less(x, op.zeros_like(x))),
    softmax=_along("Softmax"),
    square=lambda _, x: x * x,
    subtract=_sum_where(op.subtract),
    trunc=_float_only(
        lambda _, x: op.where(op.less(x, 0.0), op.ceil(x), op.floor(x)), _same),
)  # fmt: skip
forms(instead=True, threshold=_threshold)
