"""Converters of comparisons and logical operators. The result of a logical operator has the dtype
of its operands.
"""

from __future__ import annotations

from typing import Any

from meta import op
from meta.frontend.core.arithmetic import cast_to
from meta.frontend.relay.registry import relay

relay.same("equal", op.equal)
relay.same("greater", op.greater)
relay.same("greater_equal", op.greater_equal)
relay.same("less", op.less)
relay.same("less_equal", op.less_equal)
relay.same("not_equal", op.not_equal)


@relay("logical_and", op.logical_and)
def logical_and(lhs: Any, rhs: Any) -> Any:
    """Whether both are not 0."""
    return cast_to(op.logical_and(lhs, rhs), lhs.dtype)


@relay("logical_or", op.logical_or)
def logical_or(lhs: Any, rhs: Any) -> Any:
    """Whether one is not 0."""
    return cast_to(op.logical_or(lhs, rhs), lhs.dtype)


@relay("logical_xor", op.logical_xor)
def logical_xor(lhs: Any, rhs: Any) -> Any:
    """Whether exactly one is not 0."""
    return cast_to(op.logical_xor(lhs, rhs), lhs.dtype)


@relay("logical_not", op.logical_not)
def logical_not(data: Any) -> Any:
    """Whether it is 0."""
    return cast_to(op.logical_not(data), data.dtype)
