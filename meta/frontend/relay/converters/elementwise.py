"""Converters of elementwise operators: functions of one tensor, arithmetic, bits, comparisons,
logic, and products of integers with fixed-point numbers.

The result of a logical operator has the dtype of its operands.
"""

from __future__ import annotations

import math

from meta import op
from meta.base.dtype import is_float, limits
from meta.frontend.core import Unconvertible
from meta.frontend.core.arithmetic import cast_to, quotient, rounded, truncated_quotient
from meta.frontend.relay.registry import relay

relay.same("nn.relu", op.relu)
relay.same("abs", op.abs)
relay.same("acos", op.acos)
relay.same("acosh", op.acosh)
relay.same("asin", op.asin)
relay.same("asinh", op.asinh)
relay.same("atan", op.atan)
relay.same("atanh", op.atanh)
relay.same("ceil", op.ceil)
relay.same("cos", op.cos)
relay.same("cosh", op.cosh)
relay.same("erf", op.erf)
relay.same("exp", op.exp)
relay.same("floor", op.floor)
relay.same("isfinite", op.isfinite)
relay.same("isinf", op.isinf)
relay.same("isnan", op.isnan)
relay.same("log", op.log)
relay.same("log10", op.log10)
relay.same("log2", op.log2)
relay.same("negative", op.negative)
relay.same("rsqrt", op.rsqrt)
relay.same("sigmoid", op.sigmoid)
relay.same("sign", op.sign)
relay.same("sin", op.sin)
relay.same("sinh", op.sinh)
relay.same("sqrt", op.sqrt)
relay.same("tan", op.tan)
relay.same("tanh", op.tanh)
relay.same("trunc", op.trunc)
relay.same("zeros_like", op.zeros_like)
relay.same("ones_like", op.ones_like)

# TVM approximates these by polynomials, within 1e-3; here they are exact.
relay.same("fast_erf", op.erf)
relay.same("fast_exp", op.exp)
relay.same("fast_tanh", op.tanh)

relay("round", op.trunc, op.where)(rounded)


@relay("clip", op.clip)
def clip(data, *, a_min, a_max):
    """Bounds are doubles; of integers they lose their fraction, and reach as far as the dtype."""
    if a_min is None or a_max is None:
        raise Unconvertible("clip has no bounds", hint="a_min and a_max")
    if is_float(data.dtype):
        return op.clip(data, float(a_min), float(a_max))
    low, high = int(limits(data.dtype).min), int(limits(data.dtype).max)
    return op.clip(data, _whole(a_min, low, high), _whole(a_max, low, high))


def _whole(bound: float, low: int, high: int) -> int:
    if math.isnan(bound):
        raise Unconvertible("clip has a bound that is no number")
    return low if bound <= low else high if bound >= high else math.trunc(bound)


@relay("cast", op.cast)
def cast(data, *, dtype):
    """Floats lose their fraction."""
    return op.cast(data, dtype)


relay.same("cast_like", op.cast_like)


@relay("reinterpret", op.reinterpret)
def reinterpret(data, *, dtype):
    """The bits as they are."""
    return op.reinterpret(data, dtype)


relay.same("floor_divide", op.floor_divide)
relay.same("floor_mod", op.mod)
relay.same("maximum", op.maximum)
relay.same("minimum", op.minimum)
relay.same("multiply", op.multiply)
relay.same("power", op.power)
relay.same("mod", op.fmod)
relay.same("trunc_mod", op.fmod)

relay("divide", op.divide, op.floor_divide)(quotient)
relay("trunc_divide", op.trunc, op.floor_divide)(truncated_quotient)


@relay("add", op.add)
def add(lhs, rhs):
    """Integers wrap."""
    return op.add(lhs, rhs)


@relay("subtract", op.subtract)
def subtract(lhs, rhs):
    """Integers wrap."""
    return op.subtract(lhs, rhs)


@relay("where", op.where)
def where(condition, x, y, *, call):
    """All three broadcast. Before TVM 0.8 a vector as the condition chooses among rows."""
    if condition.ndim == 1 < x.ndim and condition.shape[0] == x.shape[0]:
        old = call.version is not None and call.version < (0, 8)
        if old or condition.shape[0] not in (1, x.shape[-1]):
            condition = op.reshape(condition, (-1, *(1,) * (x.ndim - 1)))
    return op.where(condition, x, y)


relay.same("bitwise_and", op.bitwise_and)
relay.same("bitwise_not", op.bitwise_not)
relay.same("bitwise_or", op.bitwise_or)
relay.same("bitwise_xor", op.bitwise_xor)
relay.same("left_shift", op.left_shift)
relay.same("right_shift", op.right_shift)


relay.same("equal", op.equal)
relay.same("greater", op.greater)
relay.same("greater_equal", op.greater_equal)
relay.same("less", op.less)
relay.same("less_equal", op.less_equal)
relay.same("not_equal", op.not_equal)


@relay("logical_and", op.logical_and)
def logical_and(lhs, rhs):
    """Whether both are not 0."""
    return cast_to(op.logical_and(lhs, rhs), lhs.dtype)


@relay("logical_or", op.logical_or)
def logical_or(lhs, rhs):
    """Whether one is not 0."""
    return cast_to(op.logical_or(lhs, rhs), lhs.dtype)


@relay("logical_xor", op.logical_xor)
def logical_xor(lhs, rhs):
    """Whether exactly one is not 0."""
    return cast_to(op.logical_xor(lhs, rhs), lhs.dtype)


@relay("logical_not", op.logical_not)
def logical_not(data):
    """Whether it is 0."""
    return cast_to(op.logical_not(data), data.dtype)


@relay("fixed_point_multiply", op.fixed_point_multiply)
def fixed_point_multiply(data, *, multiplier, shift):
    return op.fixed_point_multiply(data, multiplier, shift)


@relay("fixed_point_multiply_per_axis", op.fixed_point_multiply, ignore=("is_rshift_required",))
def fixed_point_multiply_per_axis(
    data, multiplier, left_shift, right_shift, *, axes, is_lshift_required
):
    """The parameters have one axis for each of ``axes``."""
    places = [int(a) + data.ndim if a < 0 else int(a) for a in axes]
    if len(set(places)) != multiplier.ndim or not all(0 <= p < data.ndim for p in places):
        raise Unconvertible(f"axes={tuple(axes)} do not name the axes of the multipliers")
    shape = [1] * data.ndim
    for place, extent in zip(places, multiplier.shape, strict=True):
        shape[place] = extent
    order = tuple(sorted(range(len(places)), key=places.__getitem__))

    def broadcast(value):
        ordered = value if order == tuple(range(len(order))) else op.transpose(value, order)
        return op.reshape(ordered, tuple(shape))

    right = op.negative(right_shift)
    shift = op.add(left_shift, right) if is_lshift_required else right
    return op.fixed_point_multiply(data, broadcast(multiplier), broadcast(shift))
