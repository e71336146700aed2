"""Converters of elementwise arithmetic of two tensors, and of `where`."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.frontend.core import CallSite
from meta.frontend.core.arithmetic import quotient, truncated_quotient
from meta.frontend.relay.registry import relay

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
def add(lhs: Any, rhs: Any) -> Any:
    """Integers wrap."""
    return op.add(lhs, rhs)


@relay("subtract", op.subtract)
def subtract(lhs: Any, rhs: Any) -> Any:
    """Integers wrap."""
    return op.subtract(lhs, rhs)


@relay("where", op.where)
def where(condition: Any, x: Any, y: Any, *, call: CallSite) -> Any:
    """All three broadcast. Before TVM 0.8 a vector as the condition chooses among rows."""
    if condition.ndim == 1 < x.ndim and condition.shape[0] == x.shape[0]:
        old = call.version is not None and call.version < (0, 8)
        if old or condition.shape[0] not in (1, x.shape[-1]):
            condition = op.reshape(condition, (-1, *(1,) * (x.ndim - 1)))
    return op.where(condition, x, y)
