"""Converters of quantized functions of one tensor: by way of floats, as TVM computed their tables;
the softmax and leaky_relu by integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from meta import op
from meta.frontend.core import CallSite
from meta.frontend.core.arithmetic import rounded
from meta.frontend.relay.quantization import (
    dequantize,
    fixed_point,
    quantize,
    requantize,
    saturated,
    scale_of,
    shifted,
    zero_of,
)
from meta.frontend.relay.registry import relay


def _by_floats(name: str, function: Callable[..., Any], *becomes: Any) -> None:
    @relay(name, *becomes)
    def converter(data: Any, scale: Any, zero: Any, to_scale: Any, to_zero: Any) -> Any:
        real = function(dequantize(data, scale_of(scale), zero_of(zero)))
        return quantize(real, scale_of(to_scale), zero_of(to_zero), data.dtype)


_by_floats("qnn.abs", op.abs, op.abs)
_by_floats("qnn.erf", op.erf, op.erf)
_by_floats("qnn.exp", op.exp, op.exp)
_by_floats("qnn.log", op.log, op.log)
_by_floats("qnn.sigmoid", op.sigmoid, op.sigmoid)
_by_floats("qnn.sqrt", op.sqrt, op.sqrt)
_by_floats("qnn.rsqrt", lambda x: op.divide(1.0, op.sqrt(x)), op.divide, op.sqrt)
_by_floats("qnn.tanh", op.tanh, op.tanh)
_by_floats("qnn.hardswish", op.hardswish, op.hardswish)


@relay("qnn.leaky_relu", op.fixed_point_multiply, op.where, op.clip)
def leaky_relu(
    data: Any,
    scale: Any,
    zero: Any,
    to_scale: Any,
    to_zero: Any,
    *,
    alpha: float,
    call: CallSite,
) -> Any:
    """Requantize; below zero alpha of it and the rest of the result's zero point."""
    zero, to_zero = zero_of(zero), zero_of(to_zero)
    own, target = scale_of(scale), scale_of(to_scale)
    x = requantize(data, own, zero, target, to_zero, "int32", call.device)
    rest = fixed_point(1 - alpha)
    if isinstance(to_zero, int):
        factor, shift = rest
        offset: Any = _scaled(to_zero, factor, shift)
    else:
        offset = op.fixed_point_multiply(to_zero, *rest)
    below = op.add(op.fixed_point_multiply(x, *fixed_point(alpha)), offset)
    negative = op.less(op.cast(data, "int32"), zero)
    return saturated(op.where(negative, below, x), data.dtype)


def _scaled(value: int, factor: int, shift: int) -> int:
    """Return what `meta.op.fixed_point_multiply` makes of one number."""
    right = 31 - shift
    return (value * factor + (1 << (right - 1))) >> right


STEPS, FRACTION = 8, 30
"""Bits by which exponentials are shifted, and bits behind the point of their reciprocal sum."""


@relay("qnn.softmax", op.max, op.right_shift, op.left_shift, op.floor_divide, op.sum)
def softmax(
    data: Any,
    scale: Any,
    zero: Any,
    to_scale: Any,
    to_zero: Any,
    *,
    axis: int,
    call: CallSite,
) -> Any:
    """By integers alone. Lin et al., "I-ViT: integer-only quantization for efficient vision
    transformer inference", ICCV 2023, algorithm 1.
    """
    x = shifted(data, zero_of(zero))
    x = op.subtract(x, op.max(x, axis, True))
    unit = _reciprocal(scale_of(scale))
    # x / log(2) by shifts, as a multiple of the unit and a rest, both of them at most 0
    power = op.subtract(op.add(x, op.right_shift(x, 1)), op.right_shift(x, 4))
    whole = op.floor_divide(op.negative(power), unit)
    rest = op.add(power, op.multiply(whole, unit))
    exponential = op.left_shift(op.add(op.right_shift(rest, 1), unit), op.subtract(STEPS, whole))
    total = op.cast(op.sum(exponential, axis, True), "int32")
    share = op.multiply(op.floor_divide(1 << FRACTION, total), exponential)
    bits = 7  # of a share that is int8
    y = op.right_shift(share, FRACTION - bits)
    own, target = 2.0**-bits, scale_of(to_scale)
    return requantize(y, own, 0, target, zero_of(to_zero), "int8", call.device)


def _reciprocal(scale: Any) -> Any:
    """Return 1 / scale as a whole number."""
    if isinstance(scale, float):
        quotient = np.float32(1) / np.float32(scale)
        return int(np.floor(quotient + np.float64(0.5)))
    return saturated(rounded(op.divide(1.0, scale)), "int32")


@relay("qnn.avg_pool2d", op.avg_pool2d, op.fixed_point_multiply, op.clip)
def avg_pool2d(
    data: Any,
    scale: Any,
    zero: Any,
    to_scale: Any,
    to_zero: Any,
    *,
    call: CallSite,
    **attributes: Any,
) -> Any:
    """Requantize, then means of integers, truncated."""
    old, new = (scale_of(scale), zero_of(zero)), (scale_of(to_scale), zero_of(to_zero))
    x = requantize(data, *old, *new, "int32", call.device)
    site = replace(call, name="nn.avg_pool2d")
    return saturated(relay.apply(site, (x,), attributes), data.dtype)
