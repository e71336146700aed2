"""Converters of what puts elements around or between those of a tensor."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.frontend.core.arithmetic import cast_to, number_in
from meta.frontend.relay.arguments import WHOLE, known_number
from meta.frontend.relay.registry import relay

Pairs = tuple[tuple[int, int], ...]


def _flat(pairs: Pairs) -> tuple[int, ...]:
    return tuple(width for pair in pairs for width in pair)


@relay("nn.pad", op.pad)
def pad(
    data: Any,
    pad_val: Any = None,
    *,
    pad_width: Pairs,
    pad_mode: str,
    pad_value: float | None,
) -> Any:
    """The value is an attribute up to TVM 0.7, later a second tensor."""
    widths = _flat(pad_width)
    if pad_mode != "constant":
        return op.pad(data, widths, pad_mode=pad_mode)
    value = pad_val if pad_value is None else pad_value
    if value is None:
        return op.pad(data, widths)
    number = value if isinstance(value, int | float) else known_number(value)
    if number is not None:
        return op.pad(data, widths, number_in(number, data.dtype))
    inside = op.pad(op.ones_like(op.cast(data, "bool")), widths, False)
    value = cast_to(op.reshape(value, (1,) * data.ndim), data.dtype)
    return op.where(inside, op.pad(data, widths), value)


@relay("nn.mirror_pad", op.mirror_pad)
def mirror_pad(data: Any, *, pad_width: Pairs, mode: str) -> Any:
    return op.mirror_pad(data, _flat(pad_width), mode)


@relay("nn.dilate", op.pad)
def dilate(x: Any, *, strides: tuple[int, ...], dilation_value: float) -> Any:
    """Each element is followed by strides - 1 values along its axes, but for the last ones."""
    split = tuple(n for extent in x.shape for n in (extent, 1))
    widths = tuple(n for s in strides for n in (0, 0, 0, s - 1))
    spread = op.pad(op.reshape(x, split), widths, number_in(dilation_value, x.dtype))
    spread = op.reshape(spread, tuple(n * s for n, s in zip(x.shape, strides, strict=True)))
    ends = tuple(
        WHOLE if s == 1 else n * s - (s - 1) for n, s in zip(x.shape, strides, strict=True)
    )
    return op.strided_slice(spread, (0,) * x.ndim, ends)
