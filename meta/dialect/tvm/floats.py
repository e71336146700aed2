"""Keeping TVM's simplifier to the arithmetic of floats.

It takes them for real numbers: ``(x + y) - y`` becomes x, ``x - x`` becomes 0, ``x == x`` true, and
``not (x < y)`` becomes ``y <= x``, whatever is rounded, infinite or NaN. It meets such expressions
where several operators are one kernel, and one's result is put into another's expression. The forms
below mean the same, and none of its rules applies to them; LLVM and NVCC make of them what they
make of the others.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx

from meta.base.dtype import is_float

_ORDERS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)


def unsimplified(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the function with its differences and comparisons of floats in these forms."""
    rules = [
        (tirx.Sub, _difference),
        (tirx.EQ, _compared),
        (tirx.NE, _compared),
        (tirx.BufferStore, _stored),
    ]
    return tvm_ffi.structural_map(function, rules, order="post")


def subtracted(value: Any) -> tuple[Any, Any] | None:
    """Return (a, b) of a difference a - b in the form that `unsimplified` gives it."""
    if isinstance(value, tirx.Add) and _is_negated(value.b):
        return value.a, value.b.a
    return None


def _difference(node: Any) -> Any:
    """a + b * -1: exact, and no difference to the simplifier."""
    if not is_float(_dtype(node)) or _is_zero(node.a) or _is_zero(node.b):
        return node
    if isinstance(node.b, tirx.FloatImm):
        return tirx.Add(node.a, tirx.const(-node.b.value, _dtype(node)))
    return tirx.Add(node.a, _negated(node.b))


def _compared(node: Any) -> Any:
    """The second operand is negated twice: the simplifier does not see that both are the same."""
    constant = isinstance(node.a, tirx.FloatImm) or isinstance(node.b, tirx.FloatImm)
    if constant or not is_float(_dtype(node.a)):
        return node
    return type(node)(node.a, _negated(_negated(node.b)))


def _stored(node: Any) -> Any:
    """The truth of a comparison is a number first, which nobody negates by turning it around."""
    value = node.value
    if not isinstance(value, _ORDERS) or not is_float(_dtype(value.a)):
        return node
    value = tirx.Cast("bool", tirx.Cast("int8", value))
    return tirx.BufferStore(node.buffer, value, node.indices)


def _negated(value: Any) -> Any:
    return tirx.Mul(value, tirx.const(-1.0, _dtype(value)))


def _is_negated(value: Any) -> bool:
    return (
        isinstance(value, tirx.Mul) and isinstance(value.b, tirx.FloatImm) and value.b.value == -1.0
    )


def _is_zero(value: Any) -> bool:
    return isinstance(value, tirx.FloatImm) and value.value == 0.0


def _dtype(value: Any) -> str:
    return str(value.ty.dtype)
