"""Rules of elementwise arithmetic and logic, and which tensors hold one number everywhere
(`fill_of`), whatever made them.
"""

from __future__ import annotations

import math
from math import frexp
from typing import Any, Protocol

import torch

from meta import op
from meta.base.dtype import TO_TORCH, UNSIGNED, has_gradient, is_float, prepare_cast
from meta.dialect.core.ir_calls import OpCall, new_call, op_call, tensor_type
from meta.ir import Constant, Expr
from meta.ir.constants import tensor_bytes
from meta.op.core.numbers import Number
from meta.passes.simplify.table import RULES, RuleSite

# A constant is looked at up to this many elements.
_LIMIT = 4096
# Up to this, every integer is a float64.
_EXACT = 1 << 53
_FILLS = {op.zeros: 0, op.zeros_like: 0, op.ones: 1, op.ones_like: 1}
_KEEPS_FILL = (
    *(op.reshape, op.expand_dims, op.squeeze, op.permute_dims),
    *(op.broadcast_to, op.broadcast_to_like),
)


class _Values(Protocol):
    """What variables are bound to."""

    def get(self, atom: object) -> Expr | None:
        """Return the value of a variable; None if it is not known."""


def fill_of(atom: Any, known: _Values) -> Number | None:
    """Return the number that every element of ``atom`` is; None if they differ or are not known.

    A Python number is that of a tensor of any shape.
    """
    while (value := op_call(known.get(atom))) is not None:
        if value.op not in _KEEPS_FILL:
            return _fill_value(value, atom)
        atom = value.args[0]
    if isinstance(atom, Constant):
        return _constant(atom.data)
    return atom if isinstance(atom, bool | int | float) else None


def _fill_value(value: OpCall, atom: Any) -> Number | None:
    """Return the number with which a call fills its result, as the dtype of that holds it."""
    type_ = tensor_type(atom)
    if value.op in _FILLS:
        return _FILLS[value.op]
    if value.op not in (op.full, op.full_like) or type_ is None:
        return None
    number = value.args[1]
    if isinstance(number, int) and abs(number) > _EXACT:
        return None
    if not math.isfinite(number):
        return float(number) if has_gradient(type_.dtype) else None
    dtype = TO_TORCH[type_.dtype]
    held: Number = prepare_cast(torch.tensor(number).double(), dtype).to(dtype).item()
    return held


def _constant(data: torch.Tensor) -> Number | None:
    if not 0 < data.numel() <= _LIMIT:
        return None
    raw = bytes(tensor_bytes(data))
    first: Number = data.reshape(-1)[0].item()
    return first if raw == raw[: data.element_size()] * data.numel() else None


def is_number(found: Number | None, value: float) -> bool:
    """Whether a fill is this number, with its sign: -0.0 is not 0.0."""
    if found is None or isinstance(found, bool | complex):
        return False
    return str(float(found)) == str(float(value))


def _other_operand(at: RuleSite, value: float) -> Expr | None:
    """Return the operand beside one that is this number; beside the second one, unless operands
    may be exchanged.
    """
    for side in (1, 0) if at.op.commutative else (1,):
        if is_number(fill_of(at.args[side], at.known), value):
            return at.same(at.args[1 - side])
    return None


@RULES.rule(op.subtract, op.add)
def add_zero(at: RuleSite) -> Expr | None:
    """x - 0 and x + -0.0 are x, for -0.0 too; x + 0 is not, unless x is an integer."""
    if any(a is not None for a in at.args[2:]):
        return None
    return _other_operand(at, -0.0 if at.op is op.add and has_gradient(at.type.dtype) else 0.0)


@RULES.rule(op.multiply, op.divide, op.pow)
def multiply_by_unit(at: RuleSite) -> Expr | None:
    """x * 1, x / 1 and x ** 1 are x."""
    return _other_operand(at, 1.0)


@RULES.rule(op.pow)
def small_power(at: RuleSite) -> Expr | None:
    """x ** 2 is x * x, one rounding in both; x ** 0 is 1, for NaN too (IEEE 754, section 9.2.1).

    x ** 0.5 is no square root: they differ at -0.0 and at -inf.
    """
    base = at.same(at.args[0])
    exponent = fill_of(at.args[1], at.known)
    if base is None or exponent is None:
        return None
    if is_number(exponent, 2.0):
        return new_call(op.multiply, base, base)
    if is_number(exponent, 0.0) or is_number(exponent, -0.0):
        return new_call(op.ones_like, base)
    return None


@RULES.rule(op.divide)
def division_by_a_power_of_two(at: RuleSite) -> Expr | None:
    """x / 2**k is x * 2**-k: the same real number, rounded once."""
    x, divisor = at.args
    if not is_float(at.type.dtype) or not isinstance(divisor, int | float) or not divisor:
        return None
    operand = tensor_type(x)
    if operand is None or operand.dtype != at.type.dtype:  # integers, which are cast
        return None
    if isinstance(divisor, bool) or abs(frexp(divisor)[0]) != 0.5:
        return None
    # Both numbers must be normal in the dtype of the tensor.
    info, size = torch.finfo(TO_TORCH[at.type.dtype]), abs(float(divisor))
    if not (info.tiny <= size <= info.max and info.tiny <= 1 / size <= info.max):
        return None
    return new_call(op.multiply, x, 1.0 / divisor)


@RULES.rule(op.multiply, op.divide)
def negative_unit_factor(at: RuleSite) -> Expr | None:
    """x * -1 and x / -1 are -x."""
    x = None if at.type.dtype == "bool" else _other_operand(at, -1.0)
    return None if x is None else new_call(op.negative, x)


@RULES.rule(op.add, op.subtract)
def negated_term(at: RuleSite) -> Expr | None:
    """x + -y is x - y, x - -y is x + y: IEEE 754 defines subtraction so."""
    if any(a is not None for a in at.args[2:]):
        return None
    x, y = at.args[:2]
    minus = at.op is op.subtract
    second = at.made_by(y, op.negative)
    if second is not None:
        return new_call(op.add if minus else op.subtract, x, second.args[0])
    first = None if minus else at.made_by(x, op.negative)
    return None if first is None else new_call(op.subtract, y, first.args[0])


@RULES.rule(op.multiply, op.divide)
def negated_factors(at: RuleSite) -> Expr | None:
    """-x * -y is x * y, -x / -y is x / y; of floats, for the negative of an integer may wrap."""
    x, y = (at.made_by(a, op.negative) for a in at.args)
    if x is None or y is None:
        return None
    types = (tensor_type(x.args[0]), tensor_type(y.args[0]))
    if any(t is None or not is_float(t.dtype) for t in types):
        return None
    return new_call(at.op, x.args[0], y.args[0])


@RULES.rule(op.negative, op.bitwise_invert, op.logical_not, op.flip)
def involution(at: RuleSite) -> Expr | None:
    """What undoes itself, twice: of `logical_not` only where x is bool."""
    inner = at.made_by(at.args[0], at.op)
    if inner is None or inner.args[1:] != at.args[1:]:
        return None
    return at.same(inner.args[0])


@RULES.rule(
    op.relu, op.abs, op.floor, op.ceil, op.round, op.trunc, op.sign, op.copy, op.triu, op.tril
)
def idempotent(at: RuleSite) -> Expr | None:
    """What changes nothing any more the second time."""
    inner = at.made_by(at.args[0], at.op)
    return at.same(at.args[0]) if inner is not None and inner.args[1:] == at.args[1:] else None


@RULES.rule(op.abs)
def absolute_of_negative(at: RuleSite) -> Expr | None:
    """abs(-x) is abs(x), unless x is unsigned: there -x is 2**bits - x."""
    inner = None if at.type.dtype in UNSIGNED else at.made_by(at.args[0], op.negative)
    return None if inner is None else new_call(op.abs, inner.args[0])


@RULES.rule(op.maximum, op.minimum, op.bitwise_and, op.bitwise_or, op.logical_and, op.logical_or)
def same_operands(at: RuleSite) -> Expr | None:
    """max(x, x), min(x, x), x & x and x | x are x; of `logical_and` only where x is bool."""
    return at.same(at.args[0]) if at.args[0] is at.args[1] else None
