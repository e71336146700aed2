"""The converter of deformable convolution (Dai et al., arXiv:1703.06211), as interpolated samples
of the image and a matrix product. What it is made of has gradients, so it has them too.
"""

from __future__ import annotations

from typing import Any

import torch

from meta import op
from meta.base.device import Device
from meta.frontend.core import CallSite, Unconvertible
from meta.frontend.core.arithmetic import cast_to
from meta.frontend.core.products import product
from meta.frontend.relay.layout import change_layout
from meta.frontend.relay.registry import relay
from meta.frontend.relay.windows import per_axis
from meta.op.core.check import pair
from meta.op.core.window import DATA, KERNEL, pads
from meta.runtime.ndarray import array


def _regular(
    taps: tuple[int, int],
    places: tuple[int, int],
    window: tuple[tuple[int, ...], ...],
    axis: int,
    like: Any,
    device: Device,
) -> Any:
    """Return where the taps of a window without offsets lie on an axis: [1, 1, taps, *places], of
    the dtype of ``like``.
    """
    before, stride, dilation = (numbers[axis] for numbers in window)
    tap = torch.arange(taps[axis], dtype=torch.float64) * float(dilation)
    tap = tap.repeat_interleave(taps[1]) if axis == 0 else tap.repeat(taps[0])
    place = torch.arange(places[axis], dtype=torch.float64) * float(stride) - float(before)
    place = place[:, None] if axis == 0 else place[None, :]
    grid = (tap[:, None, None] + place).expand(-1, *places)
    return array(grid[None, None], like.dtype, device=device)


def _neighbours(at: Any, extent: int) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Return the elements around coordinates on an axis, [0, extent), with their weights."""
    first, last = op.floor(at), float(extent - 1)
    behind, fraction = first + 1.0, at - first
    exists = op.less_equal(behind, last)
    second = op.where(exists, fraction, op.zeros_like(fraction))
    return (first, 1.0 - fraction), (op.minimum(behind, last), second)


def _sampled(image: Any, y: Any, x: Any) -> Any:
    """Return [N, G, C/G, S], the samples of an image [N, G, C/G, H, W] at coordinates [N, G, S].

    Between elements it is interpolated; behind the last row or column it fades to 0. Before the
    first ones it is 0 at once, as in TVM.
    """
    n, groups, channels, height, width = image.shape
    flat = op.reshape(image, (n, groups, channels, height * width))
    inside = op.logical_and(
        op.logical_and(op.greater_equal(y, 0.0), op.less(y, float(height))),
        op.logical_and(op.greater_equal(x, 0.0), op.less(x, float(width))),
    )
    # What is outside is read somewhere inside, and left out at the end.
    y, x = (op.where(inside, v, op.zeros_like(v)) for v in (y, x))
    rows, columns = _neighbours(y, height), _neighbours(x, width)
    total = None
    for row, down_weight in rows:
        for column, right_weight in columns:
            # They are in range, which the bounds tell whoever looks at indices.
            row_of = op.clip(op.cast(row, "int64"), 0, height - 1)
            at = row_of * width + op.clip(op.cast(column, "int64"), 0, width - 1)
            at = op.broadcast_to(op.expand_dims(at, 2), (n, groups, channels, y.shape[2]))
            weight = op.expand_dims(down_weight * right_weight, 2)
            part = op.gather(flat, 3, at) * cast_to(weight, flat.dtype)
            total = part if total is None else total + part
    return op.where(op.expand_dims(inside, 2), total, op.zeros_like(total))


@relay("nn.deformable_conv2d", op.gather, op.batch_matmul, ignore=("channels", "kernel_size"))
def deformable_conv2d(
    data: Any,
    offset: Any,
    weight: Any,
    *,
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
    deformable_groups: int,
    data_layout: str,
    kernel_layout: str,
    out_layout: str,
    out_dtype: str,
    call: CallSite,
) -> Any:
    """The offsets, in the data's layout, are (vertical, horizontal) pairs for every tap of every
    deformable group.
    """
    image = change_layout(data, data_layout, DATA[2])
    moves = change_layout(offset, data_layout, DATA[2])
    kernel = change_layout(weight, kernel_layout, KERNEL[2])
    (n, channels, height, width), outputs = image.shape, kernel.shape[0]
    taps, places = kernel.shape[2:], moves.shape[2:]
    count, size = taps[0] * taps[1], places[0] * places[1]
    if moves.shape[1] != 2 * count * deformable_groups or channels % deformable_groups:
        raise Unconvertible(
            f"{moves.shape[1]} offsets do not fit {count} taps, {channels} channels and "
            f"{deformable_groups} deformable groups"
        )
    window = (
        pads(per_axis(padding))[:2],
        pair(strides, "strides"),
        pair(dilation, "dilation"),
    )
    moves = op.reshape(moves, (n, deformable_groups, count, 2, *places))
    coordinates = []
    # Half precision cannot tell places apart.
    moves = cast_to(moves, "float64" if moves.dtype == "float64" else "float32")
    for axis, move in enumerate(op.split(moves, 2, 3)):
        regular = _regular(taps, places, window, axis, moves, call.device)
        found = op.reshape(move, (n, deformable_groups, count, *places)) + regular
        coordinates.append(op.reshape(found, (n, deformable_groups, count * size)))
    parts = (n, deformable_groups, channels // deformable_groups, height, width)
    samples = _sampled(op.reshape(image, parts), *coordinates)
    inputs = channels // groups * count
    columns = op.reshape(samples, (n * groups, inputs, size))
    rows = op.reshape(kernel, (1, groups, outputs // groups, inputs))
    rows = op.broadcast_to(rows, (n, groups, outputs // groups, inputs))
    rows = op.reshape(rows, (n * groups, outputs // groups, inputs))
    y = product(lambda a, b: op.batch_matmul(b, a), columns, rows, out_dtype)
    y = op.reshape(y, (n, outputs, *places))
    return change_layout(y, DATA[2], out_layout or data_layout)
