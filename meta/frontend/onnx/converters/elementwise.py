"""Converters of elementwise functions: arithmetic, comparisons, logic, rounding, casts."""

from __future__ import annotations

from functools import reduce

from meta import op
from meta.base.dtype import FLOAT8, is_float
from meta.frontend.core import Unconvertible
from meta.frontend.core.arithmetic import cast_to, truncated_quotient
from meta.frontend.onnx.registry import attributes_of, onnx

_UNARY = {
    "Abs": op.abs,
    "Acos": op.acos,
    "Acosh": op.acosh,
    "Asin": op.asin,
    "Asinh": op.asinh,
    "Atan": op.atan,
    "Atanh": op.atanh,
    "BitwiseNot": op.bitwise_invert,
    "Ceil": op.ceil,
    "Cos": op.cos,
    "Cosh": op.cosh,
    "Erf": op.erf,
    "Exp": op.exp,
    "Floor": op.floor,
    "Log": op.log,
    "Neg": op.negative,
    "Not": op.logical_not,
    "Reciprocal": op.reciprocal,
    "Round": op.round,
    "Sign": op.sign,
    "Sin": op.sin,
    "Sinh": op.sinh,
    "Sqrt": op.sqrt,
    "Tan": op.tan,
    "Tanh": op.tanh,
}
"""Of one tensor. ``consumed_inputs`` was for memory in opset 1."""
_BINARY = {
    "Add": (op.add,),
    "And": (op.logical_and,),
    "BitwiseAnd": (op.bitwise_and,),
    "BitwiseOr": (op.bitwise_or,),
    "BitwiseXor": (op.bitwise_xor,),
    "Div": (op.divide, op.floor_divide, op.fmod),
    "Equal": (op.equal,),
    "Greater": (op.greater,),
    "GreaterOrEqual": (op.greater_equal,),
    "Less": (op.less,),
    "LessOrEqual": (op.less_equal,),
    "Mul": (op.multiply,),
    "Or": (op.logical_or,),
    "Sub": (op.subtract,),
    "Xor": (op.logical_xor,),
}
"""Of two tensors: the function, and what else it may become."""


def stated(name, *attributes):
    """Those of the attributes that some version of an operator has."""
    known = attributes_of(name) or {}
    return tuple(a for a in attributes if a in known)


def _unary(name, base):
    @onnx(name, base, ignore=stated(name, "consumed_inputs"))
    def converter(x):
        return base(x)


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


def _binary(name, base, *others):
    function = _divided if name == "Div" else base
    if "broadcast" not in stated(name, "broadcast"):

        @onnx(name, base, *others)
        def converter(x, y):
            return function(x, y)

        return

    @onnx(name, base, *others, op.reshape, ignore=stated(name, "consumed_inputs"))
    def old(x, y, *, axis, broadcast, call):
        return function(x, aligned(x, y, axis, broadcast, call))


for _name, _base in _UNARY.items():
    _unary(_name, _base)
for _name, _bases in _BINARY.items():
    _binary(_name, *_bases)


def _variadic(name, *becomes, last=None):
    @onnx(name, *becomes, ignore=stated(name, "consumed_inputs"))
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


@onnx("Where", op.where)
def where(condition, x, y):
    return op.where(condition, x, y)


@onnx("Identity")
def identity(x):
    return x
