"""Converters of products of integers and fixed-point numbers."""

from typing import Any

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.relay.registry import relay


@relay("fixed_point_multiply", op.fixed_point_multiply)
def fixed_point_multiply(data: Any, *, multiplier: int, shift: int) -> Any:
    return op.fixed_point_multiply(data, multiplier, shift)


@relay("fixed_point_multiply_per_axis", op.fixed_point_multiply, ignore=("is_rshift_required",))
def fixed_point_multiply_per_axis(
    data: Any,
    multiplier: Any,
    left_shift: Any,
    right_shift: Any,
    *,
    axes: tuple[int, ...],
    is_lshift_required: bool,
) -> Any:
    """The parameters have one axis for each of ``axes``."""
    places = [int(a) + data.ndim if a < 0 else int(a) for a in axes]
    if len(set(places)) != multiplier.ndim or not all(0 <= p < data.ndim for p in places):
        raise Unconvertible(f"axes={tuple(axes)} do not name the axes of the multipliers")
    shape = [1] * data.ndim
    for place, extent in zip(places, multiplier.shape, strict=True):
        shape[place] = extent
    order = tuple(sorted(range(len(places)), key=places.__getitem__))

    def broadcast(value: Any) -> Any:
        ordered = value if order == tuple(range(len(order))) else op.transpose(value, order)
        return op.reshape(ordered, tuple(shape))

    right = op.negative(right_shift)
    shift = op.add(left_shift, right) if is_lshift_required else right
    return op.fixed_point_multiply(data, broadcast(multiplier), broadcast(shift))
