"""Converters of quantized elementwise operators and concatenations.

Functions of one tensor go by way of floats, as TVM computed their tables; the softmax and
leaky_relu by integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.core.arithmetic import rounded
from meta.frontend.relay.quantization import (
    dequantize,
    fixed_point,
    minus,
    plus,
    quantize,
    requantize,
    saturated,
    scale_of,
    shifted,
    times,
    zero_of,
)
from meta.frontend.relay.registry import relay


def _by_floats(name: str, function: Callable[..., Any], *becomes) -> None:
    @relay(name, *becomes)
    def converter(data, scale, zero, to_scale, to_zero):
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
def leaky_relu(data, scale, zero, to_scale, to_zero, *, alpha, call):
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
def softmax(data, scale, zero, to_scale, to_zero, *, axis, call):
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


def _reciprocal(scale):
    """Return 1 / scale as a whole number."""
    if isinstance(scale, float):
        quotient = np.float32(1) / np.float32(scale)
        return int(np.floor(quotient + np.float64(0.5)))
    return saturated(rounded(op.divide(1.0, scale)), "int32")


@relay("qnn.avg_pool2d", op.avg_pool2d, op.fixed_point_multiply, op.clip)
def avg_pool2d(data, scale, zero, to_scale, to_zero, *, call, **attributes):
    """Requantize, then means of integers, truncated."""
    old, new = (scale_of(scale), zero_of(zero)), (scale_of(to_scale), zero_of(to_zero))
    x = requantize(data, *old, *new, "int32", call.device)
    site = replace(call, name="nn.avg_pool2d")
    return saturated(relay.apply(site, (x,), attributes), data.dtype)


def _sum(name: str, function: Callable[..., Any], corrected: Callable[..., Any]) -> None:
    """Register a sum of two tensors, first brought to the scale and zero point of the result.

    ``corrected`` puts right how often the zero point is in the sum.
    """

    @relay(name, function, op.fixed_point_multiply, op.fixed_point_number, op.clip)
    def converter(
        lhs,
        rhs,
        *parameters,
        lhs_scale,
        lhs_zero_point,
        rhs_scale,
        rhs_zero_point,
        output_scale,
        output_zero_point,
        lhs_axis,
        rhs_axis,
        call,
    ):
        old = (lhs_scale, lhs_zero_point, rhs_scale, rhs_zero_point)
        *sides, scale, zero = _parameters(parameters, (*old, output_scale, output_zero_point))

        def common(x, s, z, axis: int):
            return requantize(x, s, z, scale, zero, "int32", call.device, axis)

        total = function(common(lhs, *sides[:2], lhs_axis), common(rhs, *sides[2:], rhs_axis))
        return saturated(corrected(total, zero), lhs.dtype)


def _parameters(tensors: tuple[Any, ...], attributes: tuple[Any, ...]) -> list[Any]:
    """Return scales and zero points in turn, of tensors or, where there are none, attributes."""
    if len(tensors) not in (0, len(attributes)):
        raise Unconvertible(f"it takes {len(attributes)} scales and zero points or none")
    given = tensors or (None,) * len(attributes)
    readers = (scale_of, zero_of) * (len(attributes) // 2)
    return [read(t, a) for read, t, a in zip(readers, given, attributes, strict=True)]


_sum("qnn.add", op.add, minus)
_sum("qnn.subtract", op.subtract, plus)


@relay("qnn.mul", op.multiply, op.fixed_point_multiply, op.fixed_point_number, op.clip)
def mul(
    lhs,
    rhs,
    *parameters,
    lhs_scale,
    lhs_zero_point,
    rhs_scale,
    rhs_zero_point,
    output_scale,
    output_zero_point,
    lhs_axis,
    rhs_axis,
    call,
):
    """The product is quantized by the product of the scales; that is requantized."""
    old = (lhs_scale, lhs_zero_point, rhs_scale, rhs_zero_point, output_scale, output_zero_point)
    left, left_zero, right, right_zero, scale, zero = _parameters(parameters, old)
    if lhs_axis != rhs_axis and not (isinstance(left, float) and isinstance(right, float)):
        raise Unconvertible("scales along different axes are not supported")
    product = op.multiply(shifted(lhs, left_zero, lhs_axis), shifted(rhs, right_zero, rhs_axis))
    own = times(left, right)
    return requantize(product, own, 0, scale, zero, lhs.dtype, call.device, lhs_axis)


@relay("qnn.concatenate", op.concatenate, op.fixed_point_multiply, op.fixed_point_number, op.clip)
def concatenate(
    data,
    scales=None,
    zeros=None,
    to_scale=None,
    to_zero=None,
    *,
    input_scales,
    input_zero_points,
    output_scale,
    output_zero_point,
    axis,
    call,
):
    """Each part is brought to the scale and zero point of the result."""
    scale, zero = scale_of(to_scale, output_scale), zero_of(to_zero, output_zero_point)
    of_attributes = scales is None
    own = _numbers(input_scales) if of_attributes else scales
    own_zeros = _numbers(input_zero_points) if of_attributes else zeros
    if own is None or own_zeros is None or not len(own) == len(own_zeros) == len(data):
        raise Unconvertible("it has not as many scales and zero points as parts")
    parts = []
    for x, s, z in zip(data, own, own_zeros, strict=True):
        part, offset = (s, z) if of_attributes else (scale_of(s), zero_of(z))
        numbers = all(isinstance(v, int | float) for v in (part, offset, scale, zero))
        same = numbers and (part, offset) == (scale, zero)
        parts.append(x if same else requantize(x, part, offset, scale, zero, x.dtype, call.device))
    return op.concatenate(tuple(parts), axis)


def _numbers(values):
    """Return constants of the program that stand in an attribute as numbers."""
    if values is None:
        return None
    return [v.value.item() if hasattr(v, "value") else v for v in values]
