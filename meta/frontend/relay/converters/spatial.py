"""Converters of what moves elements between space, channels and batch, and of upsampling."""

from __future__ import annotations

from math import prod
from typing import Any

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.core.arithmetic import cast_to, number_in
from meta.frontend.relay.converters.image_resize import in_floats
from meta.frontend.relay.layout import change_layout, to_plain
from meta.frontend.relay.registry import relay
from meta.frontend.relay.windows import extents, plain

Pairs = tuple[tuple[int, int], ...]

relay.same("nn.depth_to_space", op.depth_to_space)


# The mode is an attribute of both, but TVM's kernel knows one order.
@relay("nn.space_to_depth", op.space_to_depth, ignore=("mode",))
def space_to_depth(data: Any, *, block_size: int, layout: str) -> Any:
    return op.space_to_depth(data, block_size, layout)


@relay("nn.space_to_batch_nd", op.pad, op.reshape, op.transpose)
def space_to_batch_nd(
    data: Any, *, block_shape: tuple[int, ...], paddings: Pairs, pad_value: float
) -> Any:
    """The elements of every block of the padded spatial axes (behind the first) become a batch."""
    count = len(block_shape)
    widths = (0, 0, *(n for p in paddings for n in p), *(0, 0) * (data.ndim - 1 - count))
    x = op.pad(data, widths, number_in(pad_value, data.dtype)) if any(widths) else data
    batch, space, rest = x.shape[0], x.shape[1 : 1 + count], x.shape[1 + count :]
    split = [n for s, b in zip(space, block_shape, strict=True) for n in (s // b, b)]
    x = op.reshape(x, (batch, *split, *rest))
    blocks, places = range(2, 2 + 2 * count, 2), range(1, 1 + 2 * count, 2)
    x = op.transpose(x, (*blocks, 0, *places, *range(1 + 2 * count, x.ndim)))
    return op.reshape(x, (batch * prod(block_shape), *split[::2], *rest))


@relay("nn.batch_to_space_nd", op.reshape, op.transpose, op.strided_slice)
def batch_to_space_nd(data: Any, *, block_shape: tuple[int, ...], crops: Pairs) -> Any:
    """Undo `space_to_batch_nd`, with ``crops`` for its paddings."""
    count = len(block_shape)
    batch, space, rest = data.shape[0], data.shape[1 : 1 + count], data.shape[1 + count :]
    batch = batch // prod(block_shape)
    x = op.reshape(data, (*block_shape, batch, *space, *rest))
    pairs = [axis for i in range(count) for axis in (count + 1 + i, i)]
    x = op.transpose(x, (count, *pairs, *range(2 * count + 1, x.ndim)))
    sizes = [s * b for s, b in zip(space, block_shape, strict=True)]
    x = op.reshape(x, (batch, *sizes, *rest))
    begin = (0, *(before for before, _ in crops))
    end = (batch, *(s - after for s, (_, after) in zip(sizes, crops, strict=True)))
    return op.strided_slice(x, begin, end)


def _spatial(x: Any, layout: str, letters: str) -> tuple[int, ...]:
    """Return the extents that are scaled; those of the batch and the channels may be unknown."""
    found = extents(x, layout, letters)
    if not all(isinstance(n, int) for n in found):
        raise Unconvertible(f"upsampling of unknown extents {found}")
    return found


@relay("nn.upsampling", op.upsampling)
def upsampling(
    data: Any, *, scale_h: float, scale_w: float, layout: str, method: str, align_corners: bool
) -> Any:
    x, order = in_floats(to_plain(data, layout), method), plain(layout)
    y = op.upsampling(x, scale_h, scale_w, order, method, bool(align_corners))
    return change_layout(cast_to(y, data.dtype), order, layout)


@relay("nn.upsampling3d", op.resize3d)
def upsampling3d(
    data: Any,
    *,
    scale_d: float,
    scale_h: float,
    scale_w: float,
    layout: str,
    method: str,
    coordinate_transformation_mode: str,
) -> Any:
    x, order = in_floats(to_plain(data, layout), method), plain(layout)
    scales = (scale_d, scale_h, scale_w)
    size = tuple(round(n * s) for n, s in zip(_spatial(x, order, "DHW"), scales, strict=True))
    kind = method.removeprefix("tri")
    y = op.resize3d(x, size, order, kind, coordinate_transformation_mode)
    return change_layout(cast_to(y, data.dtype), order, layout)
