"""Converters of quantized sums, differences, products and concatenations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meta import op
from meta.frontend.core import CallSite, Unconvertible
from meta.frontend.relay.quantization import (
    minus,
    plus,
    requantize,
    saturated,
    scale_of,
    shifted,
    times,
    zero_of,
)
from meta.frontend.relay.registry import relay


def _sum(name: str, function: Callable[..., Any], corrected: Callable[..., Any]) -> None:
    """Register a sum of two tensors, first brought to the scale and zero point of the result.

    ``corrected`` puts right how often the zero point is in the sum.
    """

    @relay(name, function, op.fixed_point_multiply, op.fixed_point_number, op.clip)
    def converter(
        lhs: Any,
        rhs: Any,
        *parameters: Any,
        lhs_scale: float | None,
        lhs_zero_point: int | None,
        rhs_scale: float | None,
        rhs_zero_point: int | None,
        output_scale: float | None,
        output_zero_point: int | None,
        lhs_axis: int,
        rhs_axis: int,
        call: CallSite,
    ) -> Any:
        old = (lhs_scale, lhs_zero_point, rhs_scale, rhs_zero_point)
        *sides, scale, zero = _parameters(parameters, (*old, output_scale, output_zero_point))

        def common(x: Any, s: Any, z: Any, axis: int) -> Any:
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
    lhs: Any,
    rhs: Any,
    *parameters: Any,
    lhs_scale: float | None,
    lhs_zero_point: int | None,
    rhs_scale: float | None,
    rhs_zero_point: int | None,
    output_scale: float | None,
    output_zero_point: int | None,
    lhs_axis: int,
    rhs_axis: int,
    call: CallSite,
) -> Any:
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
    data: tuple[Any, ...],
    scales: Any = None,
    zeros: Any = None,
    to_scale: Any = None,
    to_zero: Any = None,
    *,
    input_scales: Any,
    input_zero_points: Any,
    output_scale: float | None,
    output_zero_point: int | None,
    axis: int,
    call: CallSite,
) -> Any:
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


def _numbers(values: Any) -> Any:
    """Return constants of the program that stand in an attribute as numbers."""
    if values is None:
        return None
    return [v.value.item() if hasattr(v, "value") else v for v in values]
