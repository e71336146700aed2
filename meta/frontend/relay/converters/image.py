"""Converters of image operators: resizing, sampling at computed positions, what moves elements
between space, channels and batch, and comparisons of two images.
"""

from __future__ import annotations

from math import prod

import numpy as np

from meta import op
from meta.base.dtype import is_float
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import constant, is_static
from meta.frontend.core.arithmetic import cast_number, cast_to
from meta.frontend.core.operators import grid_sample
from meta.frontend.relay.layout import (
    change_layout,
    extents,
    per_axis,
    read_layout,
    to_plain,
    unblocked,
)
from meta.frontend.relay.registry import relay
from meta.op.core.check import pair
from meta.op.core.window import pads
from meta.runtime.ndarray import array


def cropped(data, boxes, box_indices, size, method, outside, call):
    """Return boxes of images, each resized to ``size``, as TensorFlow's crop_and_resize does.

    data: float [N, H, W, C]. boxes: [boxes, 4], y1, x1, y2, x2 in units of the extents minus 1.
    box_indices: int[boxes], the image of each. method: "linear" or "nearest_neighbor" (halves up).
    What lies outside of the image is ``outside``. Result: [boxes, *size, C].
    """
    _, height, width, channels = data.shape
    rows = op.reshape(data, (-1, channels))
    count = boxes.shape[0]
    y = op.reshape(_positions(boxes[:, 0], boxes[:, 2], height, size[0], call), (count, size[0], 1))
    x = op.reshape(_positions(boxes[:, 1], boxes[:, 3], width, size[1], call), (count, 1, size[1]))
    image = op.reshape(op.astype(box_indices, "int64"), (count, 1, 1)) * (height * width)

    def at(row, column):
        row = op.clip(op.astype(row, "int64"), 0, height - 1)
        column = op.clip(op.astype(column, "int64"), 0, width - 1)
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


def _positions(begin, end, extent, count, call):
    """Return where the samples of one axis lie: [boxes, count]."""
    if count == 1:
        return op.expand_dims((begin + end) * (0.5 * (extent - 1)), 1)
    steps = array(np.arange(count, dtype=np.float32) * ((extent - 1) / (count - 1)))
    steps = op.cast_like(steps.to(device=call.device), begin)
    return op.expand_dims(begin * float(extent - 1), 1) + op.expand_dims(end - begin, 1) * steps


@relay("image.crop_and_resize", op.take)
def crop_and_resize(
    data, boxes, box_indices, *, crop_size, layout, method, extrapolation_value, out_dtype, call
):
    if method not in ("bilinear", "nearest_neighbor"):
        raise Unconvertible(f"the method {method!r} is not known")
    size = (int(crop_size[0]), int(crop_size[1]))
    images = in_floats(change_layout(data, layout, "NHWC"), "linear")
    places = op.astype(boxes, images.dtype)
    how = (size, method.removeprefix("bi"), extrapolation_value, call)
    value = cropped(images, places, box_indices, *how)
    return change_layout(cast_to(value, out_dtype or data.dtype), "NHWC", layout)


@relay("image.affine_grid")
def affine_grid(data, *, target_shape, call):
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


relay("image.grid_sample", op.grid_sample)(grid_sample)


@relay("image.dilation2d", op.maximum)
def dilation2d(data, weight, *, strides, padding, dilations, data_layout, kernel_layout, out_dtype):
    """Grey dilation: the greatest sum of an element and a weight; beyond the edge there is 0."""
    dtype = out_dtype or data.dtype
    images = change_layout(data, data_layout, "NCHW")
    kernel = change_layout(weight, kernel_layout, "IHW")
    top, left, bottom, right = pads(per_axis(padding))
    if any((top, left, bottom, right)):
        images = op.pad.plain(images, (0, 0, 0, 0, top, bottom, left, right))
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


CROP = "tf_crop_and_resize"


def in_floats(data, method):
    """Return data as floats where numbers between its elements are computed."""
    if is_float(data.dtype) or method == "nearest_neighbor":
        return data
    return cast_to(data, "float32")


def _resized(base, letters, data, *, size, layout, method, out_dtype, **options):
    """Resize in a layout that may split channels; ``letters`` is the base operator's own."""
    if not size:
        raise Unconvertible("the attribute size is missing")
    if options["coordinate_transformation_mode"] == CROP:
        raise Unconvertible(f"the coordinate mode {CROP!r} is for images", hint="image.resize2d")
    order = layout if read_layout(layout).is_plain else letters
    x = change_layout(in_floats(data, method), layout, order)
    y = change_layout(base(x, tuple(size), order, method, **options), order, layout)
    return cast_to(y, out_dtype or data.dtype)


@relay("image.resize2d", op.resize2d)
def resize2d(data, *, roi, extrapolation_value, call, **options):
    """The region and the value outside of the image are those of one coordinate mode alone."""
    if options["coordinate_transformation_mode"] != CROP:
        return _resized(op.resize2d, "NCHW", data, **options)
    size, method, layout = options["size"], options["method"], options["layout"]
    if method == "cubic":
        raise Unconvertible(f"the method 'cubic' with the coordinate mode {CROP!r}")
    if not roi or len(roi) != 4:
        raise Unconvertible(f"the coordinate mode {CROP!r} needs a roi of four numbers")
    if not size:
        raise Unconvertible("the attribute size is missing")
    images = in_floats(change_layout(data, layout, "NHWC"), "linear")
    # The whole region is one box of every image: y1, x1, y2, x2.
    count = images.shape[0]
    boxes = constant(np.tile(np.float64(roi), (count, 1)), images.dtype, call)
    numbers = constant(np.arange(count), "int64", call)
    cut = cropped(images, boxes, numbers, (size[0], size[1]), method, extrapolation_value, call)
    return change_layout(cast_to(cut, options["out_dtype"] or data.dtype), "NHWC", layout)


# What is outside of the image has no meaning without the mode that is refused.
@relay("image.resize1d", op.resize1d, ignore=("roi", "extrapolation_value"))
def resize1d(data, **options):
    return _resized(op.resize1d, "NCW", data, **options)


@relay("image.resize3d", op.resize3d, ignore=("roi", "extrapolation_value"))
def resize3d(data, *, method, **options):
    """The method "linear" is called "trilinear" in TVM 0.7."""
    method = method.removeprefix("tri")
    return _resized(op.resize3d, "NCDHW", data, method=method, **options)


@relay("image.resize", op.resize2d)
def resize(data, *, method, coordinate_transformation_mode, align_corners, call, **options):
    """Resizing in TVM 0.6 (align_corners, which is the default) and 0.7 (a coordinate mode)."""
    mode = coordinate_transformation_mode
    if align_corners is None and call.version is not None and call.version < (0, 7):
        align_corners = True
    if align_corners is not None:
        mode = "align_corners" if align_corners else "asymmetric"
    method = method.lower().removeprefix("bi")
    return _resized(
        op.resize2d, "NCHW", data, method=method, coordinate_transformation_mode=mode, **options
    )


relay.same("nn.depth_to_space", op.depth_to_space)
# The mode is an attribute of both, but TVM's kernel knows one order.
relay.same("nn.space_to_depth", op.space_to_depth, ignore=("mode",))


@relay("nn.space_to_batch_nd", op.pad, op.reshape, op.permute_dims)
def space_to_batch_nd(data, *, block_shape, paddings, pad_value):
    """The elements of every block of the padded spatial axes (behind the first) become a batch."""
    count = len(block_shape)
    widths = (0, 0, *paddings, *(0, 0) * (data.ndim - 1 - count))
    x = op.pad.plain(data, widths, cast_number(pad_value, data.dtype)) if any(widths) else data
    batch, space, rest = x.shape[0], x.shape[1 : 1 + count], x.shape[1 + count :]
    split = [n for s, b in zip(space, block_shape, strict=True) for n in (s // b, b)]
    x = op.reshape(x, (batch, *split, *rest))
    blocks, places = range(2, 2 + 2 * count, 2), range(1, 1 + 2 * count, 2)
    x = op.permute_dims(x, (*blocks, 0, *places, *range(1 + 2 * count, x.ndim)))
    return op.reshape(x, (batch * prod(block_shape), *split[::2], *rest))


@relay("nn.batch_to_space_nd", op.reshape, op.permute_dims, op.strided_slice)
def batch_to_space_nd(data, *, block_shape, crops):
    """Undo `space_to_batch_nd`, with ``crops`` for its paddings."""
    count = len(block_shape)
    batch, space, rest = data.shape[0], data.shape[1 : 1 + count], data.shape[1 + count :]
    batch = batch // prod(block_shape)
    x = op.reshape(data, (*block_shape, batch, *space, *rest))
    pairs = [axis for i in range(count) for axis in (count + 1 + i, i)]
    x = op.permute_dims(x, (count, *pairs, *range(2 * count + 1, x.ndim)))
    sizes = [s * b for s, b in zip(space, block_shape, strict=True)]
    x = op.reshape(x, (batch, *sizes, *rest))
    begin = (0, *crops[::2])
    end = (batch, *(s - after for s, after in zip(sizes, crops[1::2], strict=True)))
    return op.strided_slice(x, begin, end)


@relay("nn.upsampling", op.upsampling)
def upsampling(data, *, scale_h, scale_w, layout, method, align_corners):
    x, order = in_floats(to_plain(data, layout), method), unblocked(layout)
    y = op.upsampling(x, scale_h, scale_w, order, method, bool(align_corners))
    return change_layout(cast_to(y, data.dtype), order, layout)


@relay("nn.upsampling3d", op.resize3d)
def upsampling3d(
    data, *, scale_d, scale_h, scale_w, layout, method, coordinate_transformation_mode
):
    x, order = in_floats(to_plain(data, layout), method), unblocked(layout)
    found = extents(x, order, "DHW")
    if not is_static(found):
        raise Unconvertible(f"upsampling of unknown extents {found}")
    scales = (scale_d, scale_h, scale_w)
    size = tuple(round(n * s) for n, s in zip(found, scales, strict=True))
    y = op.resize3d(x, size, order, method.removeprefix("tri"), coordinate_transformation_mode)
    return change_layout(cast_to(y, data.dtype), order, layout)


@relay("nn.correlation", op.correlation)
def correlation(
    data1, data2, *, kernel_size, max_displacement, stride1, stride2, padding, is_multiply, layout
):
    if layout != "NCHW":
        raise Unconvertible(f"the layout {layout!r}: Relay has this operator for NCHW alone")
    window = (kernel_size, max_displacement, stride1, stride2, per_axis(padding))
    return op.correlation(data1, data2, *window, bool(is_multiply))
