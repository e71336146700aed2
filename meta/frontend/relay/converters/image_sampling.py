"""Converters of image operators that sample at computed positions: boxes, grids, dilation."""

from __future__ import annotations

from typing import Any

import numpy as np

from meta import op
from meta.base.dtype import is_float
from meta.frontend.core import CallSite, Unconvertible
from meta.frontend.core.arithmetic import cast_to
from meta.frontend.relay.layout import change_layout
from meta.frontend.relay.registry import relay
from meta.frontend.relay.windows import per_axis
from meta.op.core.check import pair
from meta.op.core.window import pads
from meta.runtime.ndarray import array


def cropped(
    data: Any,
    boxes: Any,
    box_indices: Any,
    size: tuple[int, int],
    method: str,
    outside: float,
    call: CallSite,
) -> Any:
    """Return boxes of images, each resized to ``size``, as TensorFlow's crop_and_resize does.

    data: float [N, H, W, C]. boxes: [boxes, 4], y1, x1, y2, x2 in units of the extents minus 1.
    box_indices: int[boxes], the image of each. method: "linear" or "nearest_neighbor" (halves up).
    What lies outside of the image is ``outside``. Result: [boxes, *size, C].
    """
    _, height, width, channels = data.shape
    rows = op.reshape(data, (-1, channels))
    count = boxes.shape[0]
    y = op.reshape(_places(boxes[:, 0], boxes[:, 2], height, size[0], call), (count, size[0], 1))
    x = op.reshape(_places(boxes[:, 1], boxes[:, 3], width, size[1], call), (count, 1, size[1]))
    image = op.reshape(op.cast(box_indices, "int64"), (count, 1, 1)) * (height * width)

    def at(row: Any, column: Any) -> Any:
        row = op.clip(op.cast(row, "int64"), 0, height - 1)
        column = op.clip(op.cast(column, "int64"), 0, width - 1)
        index = row * width + column + image
        return op.take(rows, index, 0)

    if method == "nearest_neighbor":
        value = at(op.floor(y + 0.5), op.floor(x + 0.5))
    else:
        top, left = op.floor(y), op.floor(x)
        fy, fx = (op.expand_dims(f, 3) for f in (y - top, x - left))
        upper = at(top, left) * (1.0 - fx) + at(top, left + 1.0) * fx
        lower = at(top + 1.0, left) * (1.0 - fx) + at(top + 1.0, left + 1.0) * fx
        value = upper * (1.0 - fy) + lower * fy
    inside_y = op.logical_and(y >= 0.0, y <= height - 1.0)
    inside_x = op.logical_and(x >= 0.0, x <= width - 1.0)
    inside = op.expand_dims(op.logical_and(inside_y, inside_x), 3)
    return op.where(inside, value, op.full_like(value, outside))


def _places(begin: Any, end: Any, extent: int, count: int, call: CallSite) -> Any:
    """Return where the samples of one axis lie: [boxes, count]."""
    if count == 1:
        return op.expand_dims((begin + end) * (0.5 * (extent - 1)), 1)
    steps = array(np.arange(count, dtype=np.float32) * ((extent - 1) / (count - 1)))
    steps = op.cast_like(steps.to(device=call.device), begin)
    return op.expand_dims(begin * float(extent - 1), 1) + op.expand_dims(end - begin, 1) * steps


@relay("image.crop_and_resize", op.take)
def crop_and_resize(
    data: Any,
    boxes: Any,
    box_indices: Any,
    *,
    crop_size: tuple[int, ...],
    layout: str,
    method: str,
    extrapolation_value: float,
    out_dtype: str,
    call: CallSite,
) -> Any:
    if method not in ("bilinear", "nearest_neighbor"):
        raise Unconvertible(f"the method {method!r} is not known")
    dtype = out_dtype or data.dtype
    images = change_layout(data, layout, "NHWC")
    images = images if is_float(images.dtype) else op.cast(images, "float32")
    size = (int(crop_size[0]), int(crop_size[1]))
    places = op.cast(boxes, images.dtype)
    value = cropped(
        images, places, box_indices, size, method.removeprefix("bi"), extrapolation_value, call
    )
    return change_layout(cast_to(value, dtype), "NHWC", layout)


@relay("image.affine_grid")
def affine_grid(data: Any, *, target_shape: tuple[int, ...], call: CallSite) -> Any:
    """Positions of an affine grid: data [N, 2, 3] applied to (x, y, 1), both from -1 to 1."""
    height, width = (int(extent) for extent in target_shape)
    if min(height, width) < 2:
        raise Unconvertible("affine_grid needs at least two positions per axis")
    # TVM stops a little before 1, so that the last position is not outside.
    ys, xs = (
        -1.0 + np.arange(n, dtype=np.float64) * ((2.0 - 1e-7) / (n - 1)) for n in (height, width)
    )
    y, x = np.meshgrid(ys, xs, indexing="ij")
    columns = (
        array(plane.reshape(1, 1, -1), data.dtype, device=call.device)
        for plane in (x, y, np.ones_like(x))
    )
    parts = [data[:, :, k : k + 1] * column for k, column in enumerate(columns)]
    return op.reshape(parts[0] + parts[1] + parts[2], (data.shape[0], 2, height, width))


@relay("image.grid_sample", op.grid_sample)
def grid_sample(
    data: Any, grid: Any, *, method: str, layout: str, padding_mode: str, align_corners: bool
) -> Any:
    if layout not in ("NCHW", "NCDHW"):
        raise Unconvertible(f"the layout {layout!r} is not supported", hint="NCHW or NCDHW")
    last = op.transpose(grid, (0, *range(2, len(grid.shape)), 1))
    return op.grid_sample(data, last, method, padding_mode, bool(align_corners))


@relay("image.dilation2d", op.maximum)
def dilation2d(
    data: Any,
    weight: Any,
    *,
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    dilations: tuple[int, ...],
    data_layout: str,
    kernel_layout: str,
    out_dtype: str,
) -> Any:
    """Grey dilation: the greatest sum of an element and a weight; beyond the edge there is 0."""
    dtype = out_dtype or data.dtype
    images = change_layout(data, data_layout, "NCHW")
    kernel = change_layout(weight, kernel_layout, "IHW")
    top, left, bottom, right = pads(per_axis(padding))
    if any((top, left, bottom, right)):
        images = op.pad(images, (0, 0, 0, 0, top, bottom, left, right))
    images, kernel = (cast_to(x, dtype) for x in (images, kernel))
    (sy, sx), (dy, dx) = pair(strides, "strides"), pair(dilations, "dilations")
    rows, columns = kernel.shape[1:]
    height, width = images.shape[2:]
    down = (height - (rows - 1) * dy - 1) // sy * sy + 1
    across = (width - (columns - 1) * dx - 1) // sx * sx + 1
    best = None
    for i in range(rows):
        for j in range(columns):
            part = images[:, :, i * dy : i * dy + down : sy, j * dx : j * dx + across : sx]
            part = part + op.reshape(kernel[:, i, j], (1, -1, 1, 1))
            best = part if best is None else op.maximum(best, part)
    return change_layout(best, "NCHW", data_layout)
