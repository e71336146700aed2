"""Converters of elementwise operators: functions of one tensor, arithmetic, bits, comparisons,
logic, and products of integers with fixed-point numbers.

The result of a logical operator has the dtype of its operands.
"""

from __future__ import annotations

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.core.arithmetic import (
    cast_to,
    clip_to_bounds,
    quotient,
    rounded,
    truncated_quotient,
)
from meta.frontend.core.operators import ELEMENTWISE
from meta.frontend.relay.registry import relay

_SAME = "cast_like fixed_point_multiply log10 log2 ones_like reinterpret zeros_like"
for _name, _base in (ELEMENTWISE | {name: getattr(op, name) for name in _SAME.split()}).items():
    relay.same(_name, _base)

relay.same("cast", op.astype)
relay.same("nn.relu", op.relu)
relay.same("floor_mod", op.remainder)
relay.same("mod", op.fmod)
relay.same("trunc_mod", op.fmod)
# TVM approximates these by polynomials, within 1e-3; here they are exact.
relay.same("fast_erf", op.erf)
relay.same("fast_exp", op.exp)
relay.same("fast_tanh", op.tanh)

relay("round", op.trunc, op.where)(rounded)
relay("divide", op.divide, op.floor_divide)(quotient)
relay("trunc_divide", op.trunc, op.floor_divide)(truncated_quotient)


_LOGICAL = (op.logical_and, op.logical_or, op.logical_xor)


@relay.each(op.add, op.subtract, op.collapse_sum_like, *_LOGICAL)
def of_two(base, lhs, rhs):
    """The result has the dtype of the first."""
    return cast_to(base(lhs, rhs), lhs.dtype)


@relay("logical_not", op.logical_not)
def logical_not(data):
    return cast_to(op.logical_not(data), data.dtype)


@relay("clip", op.clip)
def clip(data, *, a_min, a_max):
    if a_min is None or a_max is None:
        raise Unconvertible("clip has no bounds", hint="a_min and a_max")
    return clip_to_bounds(data, a_min, a_max)


@relay("where", op.where)
def where(condition, x, y, *, call):
    """All three broadcast. Before TVM 0.8 a vector as the condition chooses among rows."""
    if condition.ndim == 1 < x.ndim and condition.shape[0] == x.shape[0]:
        old = call.version is not None and call.version < (0, 8)
        if old or condition.shape[0] not in (1, x.shape[-1]):
            condition = op.reshape(condition, (-1, *(1,) * (x.ndim - 1)))
    return op.where(condition, x, y)


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
        ordered = value if order == tuple(range(len(order))) else op.permute_dims(value, order)
        return op.reshape(ordered, tuple(shape))

    right = op.negative(right_shift)
    shift = op.add(left_shift, right) if is_lshift_required else right
    return op.fixed_point_multiply(data, broadcast(multiplier), broadcast(shift))
