"""Converters of elementwise functions (arithmetic, comparisons, logic, rounding, activations), of
the softmax family, and of changes of dtype, dtypes of a few bits included.
"""

from __future__ import annotations

from functools import reduce

from onnx import TensorProto

from meta import op
from meta.base.dtype import FLOAT8, is_float
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import constant_number, reshape_as
from meta.frontend.core.arithmetic import cast_to, clip_to_bounds, truncated_quotient
from meta.frontend.onnx.converters.movement import flattened
from meta.frontend.onnx.registry import attributes_of, onnx
from meta.frontend.onnx.values import (
    FORMATS,
    SCALE,
    NarrowValue,
    bits_of,
    carrier,
    cast_narrow,
    name_of,
)
from meta.op.core.names import named_in


def aligned(x, y, axis, broadcast, call):
    """Return y with the axes that it has beside x before opset 7: the last ones of x, or those from
    ``axis`` on.
    """
    if call.opset >= 7 or not broadcast or axis is None or y.ndim == 0:
        return y
    axis = axis + x.ndim if axis < 0 else axis
    return op.reshape(y, (*y.shape, *(1,) * (x.ndim - axis - y.ndim)))


def _divided(x, y):
    return op.divide(x, y) if is_float(x.dtype) else truncated_quotient(x, y)


def _binary(name, function, *becomes):
    """Of two tensors, which before opset 7 may say along which axes: the function, and what it may
    become.
    """

    @onnx(name, *becomes, op.reshape)
    def converter(x, y, *, axis, broadcast, call):
        return function(x, aligned(x, y, axis, broadcast, call))


for _name, _base in named_in("onnx").items():
    if "broadcast" in (attributes_of(_name) or ()):
        _binary(_name, _base, _base)
    else:
        onnx.same(_name, _base)
_binary("Div", _divided, op.divide, op.floor_divide, op.fmod)
onnx.same("com.microsoft.Gelu", op.gelu)
onnx.same("LeakyRelu", op.leaky_relu, alpha="negative_slope")
onnx.same("ThresholdedRelu", op.threshold, alpha="threshold", otherwise={"value": 0.0})


def _variadic(name, *becomes, last=None):
    @onnx(name, *becomes)
    def converter(*tensors):
        if not tensors:
            raise Unconvertible("it has no inputs")
        total = reduce(becomes[0], tensors)
        return total if last is None else last(total, len(tensors))


_variadic("Max", op.maximum)
_variadic("Min", op.minimum)
_variadic("Sum", op.add)
_variadic("Mean", op.add, op.divide, last=lambda total, count: op.divide(total, float(count)))


@onnx("Pow", op.pow, op.reshape)
def power(x, y, *, axis, broadcast, call):
    """The exponent may be of another dtype than the result, which has that of the base."""
    y = aligned(x, y, axis, broadcast, call)
    if y.dtype == x.dtype:
        return op.pow(x, y)
    if is_float(x.dtype):
        return op.pow(x, cast_to(y, x.dtype))
    if is_float(y.dtype):
        return cast_to(op.pow(cast_to(x, y.dtype), y), x.dtype)
    return cast_to(op.pow(cast_to(x, "int64"), cast_to(y, "int64")), x.dtype)


@onnx("Mod", op.remainder, op.fmod)
def mod(x, y, *, fmod):
    return op.fmod(x, y) if fmod else op.remainder(x, y)


@onnx("BitShift", op.bitwise_left_shift, op.bitwise_right_shift)
def bit_shift(x, y, *, direction):
    if direction not in ("LEFT", "RIGHT"):
        raise Unconvertible(f"the direction {direction!r} is unknown", hint="LEFT or RIGHT")
    return (op.bitwise_left_shift if direction == "LEFT" else op.bitwise_right_shift)(x, y)


def _with_arithmetic(x):
    """Numbers of 8 bits as float16, which has all of them; others as they are."""
    return op.astype(x, "float16") if x.dtype in FLOAT8 else x


@onnx("IsInf", op.isinf, op.isposinf, op.isneginf)
def is_inf(x, *, detect_negative, detect_positive):
    x = _with_arithmetic(x)
    if detect_negative and detect_positive:
        return op.isinf(x)
    if detect_negative or detect_positive:
        return (op.isneginf if detect_negative else op.isposinf)(x)
    return op.zeros_like(x, "bool")


@onnx("IsNaN", op.isnan)
def is_nan(x):
    return op.isnan(_with_arithmetic(x))


@onnx("Identity")
def identity(x):
    return x


@onnx("Selu", op.selu, op.elu, op.multiply)
def selu(x, *, alpha, gamma):
    """gamma * x where x > 0, else gamma * alpha * (exp(x) - 1)."""
    return op.multiply(op.elu(x, alpha), gamma)


@onnx("HardSigmoid", op.multiply, op.add, op.clip)
def hard_sigmoid(x, *, alpha, beta):
    return op.clip(op.add(op.multiply(x, alpha), beta), 0.0, 1.0)


@onnx("Swish", op.sigmoid, op.multiply)
def swish(x, *, alpha):
    return op.multiply(x, op.sigmoid(op.multiply(x, alpha)))


@onnx("Shrink", op.where, op.subtract, op.add)
def shrink(x, *, bias, lambd):
    """x - bias above lambd, x + bias below -lambd, else 0."""
    zero = op.zeros_like(x)
    low = op.where(op.less(x, -lambd), op.add(x, _in(bias, x)), zero)
    return op.where(op.greater(x, lambd), op.subtract(x, _in(bias, x)), low)


def _in(number, x):
    """A number as one of the dtype of x."""
    return number if is_float(x.dtype) else int(number)


@onnx("PRelu", op.where, op.multiply)
def prelu(x, slope, *, call):
    """Before opset 7 the slopes are one, or one for each channel, along axis 1."""
    if call.opset < 7 and slope.size == 1:
        slope = op.reshape(slope, ())
    elif call.opset < 7:
        if x.ndim < 2 or slope.shape != x.shape[1:2]:
            raise Unconvertible(
                f"before opset 7 there is one slope, or one for each channel; here {slope.shape} "
                f"for an input {x.shape}"
            )
        slope = aligned(x, slope, 1, True, call)
    zero = op.zeros_like(x)
    return op.where(op.less(x, zero), op.multiply(x, slope), x)


@onnx("Clip", op.clip, op.maximum, op.minimum)
def clip(x, low=None, high=None, *, min, max, call):
    """The bounds are attributes before opset 11. A lower bound above the upper one gives way."""
    if call.opset < 11:
        return clip_to_bounds(x, float("-inf") if min is None else min, _or_infinite(max))
    bounds = [(b, None if b is None else constant_number(b)) for b in (low, high)]
    if all(b is None or n is not None for b, n in bounds) and is_float(x.dtype):
        least, most = (n for _, n in bounds)
        most = _or_infinite(most)
        least = float("-inf") if least is None else least
        return op.clip(x, min_of(least, most), most)
    if low is not None:
        x = op.maximum(x, op.reshape(low, ()))
    return x if high is None else op.minimum(x, op.reshape(high, ()))


def min_of(a, b):
    return a if a < b else b


def _or_infinite(bound):
    return float("inf") if bound is None else bound


def _softmax(name, base):
    @onnx(name, base, op.reshape)
    def converter(x, *, axis, call):
        """Before opset 13 all axes from the given one are one."""
        if call.opset >= 13:
            return base(x, axis)
        return reshape_as(base(_rows(x, axis), 1), x)


def _rows(x, axis):
    axis = axis + x.ndim if axis < 0 else axis
    return flattened(x, axis)


_softmax("Softmax", op.softmax)
_softmax("LogSoftmax", op.log_softmax)


@onnx("Hardmax", op.argmax, op.equal, op.reshape)
def hardmax(x, *, axis, call):
    """1 at the first of the greatest elements, 0 elsewhere."""
    if call.opset < 13:
        return reshape_as(_first_greatest(_rows(x, axis), 1), x)
    return _first_greatest(x, axis)


def _first_greatest(x, axis):
    axis = axis + x.ndim if axis < 0 else axis
    if x.shape[axis] == 0:
        return x  # nothing is chosen
    chosen = op.expand_dims(op.argmax(x, axis), axis)
    # 0, 1, ... along the axis, whose extent may have no number.
    ones = op.astype(op.ones_like(x), chosen.dtype)
    places = op.cumsum.plain(ones, axis, chosen.dtype, True)
    return op.astype(op.equal(places, chosen), x.dtype)


BECOMES = (op.astype, op.clip, op.round, op.reinterpret, op.where)


@onnx("Cast", *BECOMES)
def cast(x, *, to, saturate, round_mode):
    """Until opset 6 the dtype is a name."""
    kind = TensorProto.DataType.Value(to) if isinstance(to, str) else to
    return cast_narrow(x, name_of(kind), bool(saturate), round_mode)


@onnx("CastLike", *BECOMES)
def cast_like(x, like, *, saturate, round_mode):
    return cast_narrow(x, str(like.dtype), bool(saturate), round_mode)


@onnx("BitCast", op.reinterpret, op.astype)
def bit_cast(x, *, to):
    """Integers of a few bits keep their bits; floats of a few bits are held by their numbers."""
    dtype = name_of(to)
    if bits_of(x.dtype) != bits_of(dtype):
        raise Unconvertible(f"{x.dtype} and {dtype} are not of the same width")
    if x.dtype == dtype:
        return x
    by_number = [d for d in (x.dtype, dtype) if d == SCALE or (d in FORMATS and _is_wider(d))]
    if by_number:
        raise Unconvertible(f"the bits of {by_number[0]}, which is held by its numbers")
    if isinstance(x, NarrowValue):
        return cast_narrow(x, dtype)
    plain = op.astype(carrier(x), "uint8") if x.dtype == "bool" else x
    return op.reinterpret(plain, dtype) if plain.dtype != dtype else plain


def _is_wider(dtype):
    """Whether a floating point dtype of a few bits is held in another one."""
    return FORMATS[dtype].held != dtype
