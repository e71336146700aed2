"""Converters of elementwise functions of one tensor."""

from __future__ import annotations

import math
from typing import Any

from meta import op
from meta.base.dtype import is_float, limits
from meta.frontend.core import Unconvertible
from meta.frontend.core.arithmetic import rounded
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
def clip(data: Any, *, a_min: float | None, a_max: float | None) -> Any:
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
def cast(data: Any, *, dtype: str) -> Any:
    """Floats lose their fraction."""
    return op.cast(data, dtype)


relay.same("cast_like", op.cast_like)


@relay("reinterpret", op.reinterpret)
def reinterpret(data: Any, *, dtype: str) -> Any:
    """The bits as they are."""
    return op.reinterpret(data, dtype)
