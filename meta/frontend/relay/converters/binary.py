"""Converters of elementwise arithmetic of two tensors, and of `where`."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.base.dtype import is_float
from meta.frontend.core import CallSite, Unconvertible
from meta.frontend.relay.arithmetic import quotient, rounded, truncated_quotient
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


@relay("relay.op.annotation.simulated_quantize", op.divide, op.clip, op.trunc, op.multiply)
def simulated_quantize(
    data: Any,
    dom_scale: Any,
    clip_min: Any,
    clip_max: Any,
    *,
    kind: int,
    rounding: str,
    sign: bool,
) -> Any:
    """Rounded to a multiple of the scale between two bounds: what quantizing will do to the data.

    Kind 0 stands for the identity.
    """
    if kind == 0:
        return data
    if not sign or rounding != "round" or not is_float(data.dtype):
        raise Unconvertible("only signed rounding of floating point data is defined")
    scaled = op.divide(data, dom_scale)
    clipped = op.maximum(op.minimum(scaled, clip_max), clip_min)
    return op.multiply(rounded(clipped), dom_scale)
