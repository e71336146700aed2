"""Converters of operators that read images at positions (sampling, regions, deformed windows), and
of object detection.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import constant, required_number, static_extent
from meta.frontend.core.arithmetic import cast_to, widened
from meta.frontend.core.operators import (
    next_threshold,
    repeat_per_class,
    rows_of_selected,
    suppress_boxes,
)
from meta.frontend.onnx.converters.conv import many, with_bias
from meta.frontend.onnx.converters.indexing import positions
from meta.frontend.onnx.registry import onnx
from meta.ir.types import UNKNOWN

METHODS = {
    "bicubic": "bicubic",
    "bilinear": "bilinear",
    "cubic": "bicubic",
    "linear": "bilinear",
    "nearest": "nearest",
}
"""Names of methods before and since opset 20."""


@onnx("GridSample", op.grid_sample, op.where)
def grid_sample(x, grid, *, align_corners, mode, padding_mode, call):
    if mode not in METHODS:
        raise Unconvertible(f"the mode {mode!r} is unknown", hint=", ".join(METHODS))
    if x.ndim > 4 and METHODS[mode] == "bicubic":
        raise Unconvertible("cubic interpolation of volumes is not supported")
    if x.ndim not in (4, 5):
        raise Unconvertible(f"sampling of {x.ndim - 2} spatial axes is not supported")
    grid = cast_to(grid, x.dtype)
    if METHODS[mode] == "bicubic" and padding_mode == "border":
        # ONNX moves positions outside to the border, `grid_sample` each of the elements around.
        extents = [static_extent(d, "the image") for d in x.shape[:1:-1]]
        ends = constant([1 if align_corners else 1 - 1 / e for e in extents], x.dtype, call)
        outside = op.greater(op.abs(grid), 1.0)
        grid = op.where(outside, op.multiply(op.sign(grid), ends), grid)
    return op.grid_sample(x, grid, METHODS[mode], padding_mode, bool(align_corners))


@onnx("MaxRoiPool", op.roi_pool, op.embedding)
def max_roi_pool(x, rois, *, pooled_shape, spatial_scale):
    images, corners = op.split(widened(rois), (1,), 1)
    numbers = positions(cast_to(images, "int64"), x, 0)  # a negative one would give 0
    regions = op.concat((cast_to(numbers, corners.dtype), corners), 1)
    return cast_to(op.roi_pool(widened(x), regions, pooled_shape, spatial_scale), x.dtype)


class Corners(NamedTuple):
    """The four elements around positions: their places in the flat image and their weights."""

    places: tuple[Any, ...]
    weights: tuple[Any, ...]


def corners(y, x, height, width, *, clamps):
    """Return the elements around (y, x). Those outside have weight 0; or with ``clamps`` positions
    up to 1 beyond the image are moved to its edge, and those further away have weight 0. y and x
    are no half precision, which does not hold the numbers of rows and columns.
    """
    outside = None
    if clamps:
        beyond = (op.less(y, -1.0), op.greater(y, float(height)))
        beyond += (op.less(x, -1.0), op.greater(x, float(width)))
        outside = op.logical_or(op.logical_or(*beyond[:2]), op.logical_or(*beyond[2:]))
        y, x = op.clip(y, 0.0, height - 1.0), op.clip(x, 0.0, width - 1.0)
    top, left = op.floor(y), op.floor(x)
    places, weights = [], []
    for down in (0, 1):
        for right in (0, 1):
            row, column = op.add(top, float(down)), op.add(left, float(right))
            weight = op.multiply(
                op.subtract(1.0, op.abs(op.subtract(y, row))),
                op.subtract(1.0, op.abs(op.subtract(x, column))),
            )
            unfit = op.logical_or(
                op.logical_or(op.less(row, 0.0), op.greater(row, height - 1.0)),
                op.logical_or(op.less(column, 0.0), op.greater(column, width - 1.0)),
            )
            unfit = unfit if outside is None else op.logical_or(unfit, outside)
            weights.append(op.where(unfit, op.zeros_like(weight), weight))
            row, column = op.clip(row, 0.0, height - 1.0), op.clip(column, 0.0, width - 1.0)
            row, column = _as_integers(row), _as_integers(column)
            places.append(op.add(op.multiply(row, width), column))
    return Corners(tuple(places), tuple(weights))


def _as_integers(x):
    """Numbers as integers; 0 for a NaN, the weight of which is one."""
    return cast_to(op.where(op.isnan(x), op.zeros_like(x), x), "int64")


@onnx("RoiAlign", op.roi_align, op.embedding, op.take_along_axis)
def roi_align(
    x,
    rois,
    images,
    *,
    coordinate_transformation_mode,
    mode,
    output_height,
    output_width,
    sampling_ratio,
    spatial_scale,
    call,
):
    """The greatest of weighted elements is computed at the samples; with a number of samples that
    depends on the region it is refused.
    """
    aligned = call.opset >= 16 and coordinate_transformation_mode == "half_pixel"
    if mode not in ("avg", "max"):
        raise Unconvertible(f"mode={mode!r} is unknown", hint="avg or max")
    size, dtype = (output_height, output_width), x.dtype
    x, rois = widened(x), widened(rois)  # numbers of images and places have more than 11 bits
    if mode == "avg":
        numbers = op.expand_dims(positions(images, x, 0), 1)  # a negative one would give 0
        regions = op.concat((cast_to(numbers, rois.dtype), rois), 1)
        ratio = sampling_ratio or -1
        y = op.roi_align(x, regions, size, spatial_scale, ratio, aligned=aligned)
        return cast_to(y, dtype)
    if sampling_ratio <= 0:
        raise Unconvertible(
            "samples whose number depends on the region are not supported with mode='max'",
            hint="state sampling_ratio",
        )
    y = _sampled_regions(x, rois, images, size, sampling_ratio, spatial_scale, aligned, call)
    return cast_to(y, dtype)


def _sampled_regions(x, rois, images, size, ratio, scale, aligned, call):
    batch, channels, height, width = (static_extent(d, "the image") for d in x.shape)
    count = static_extent(rois.shape[0], "the regions")
    edges = op.subtract(op.multiply(rois, scale), 0.5 if aligned else 0.0)
    left, top, right, bottom = op.split(edges, 4, 1)

    def samples(first, last, bins):
        """Positions along an axis, [regions, bins * ratio]."""
        length = op.subtract(last, first)
        length = length if aligned else op.maximum(length, op.ones_like(length))
        steps = (np.arange(bins * ratio) + 0.5) / (bins * ratio)
        row = constant(steps.reshape(1, -1), x.dtype, call)
        return op.add(first, op.multiply(length, row))

    rows, columns = (ratio * n for n in size)
    whole = (count, rows, columns)
    y = op.broadcast_to(op.expand_dims(samples(top, bottom, size[0]), 2), whole)
    z = op.broadcast_to(op.expand_dims(samples(left, right, size[1]), 1), whole)
    found = corners(y, z, height, width, clamps=True)
    # [regions, C, height * width], of each region's image.
    flat = op.embedding(images, op.reshape(x, (batch, channels * height * width)))
    flat = op.reshape(flat, (count, channels, height * width))
    parts = []
    for place, weight in zip(*found, strict=True):
        index = op.reshape(place, (count, 1, rows * columns))
        index = op.broadcast_to(index, (count, channels, rows * columns))
        values = op.take_along_axis(flat, index, 2)
        parts.append(op.multiply(values, op.reshape(weight, (count, 1, rows * columns))))
    bins = (count, channels, size[0], ratio, size[1], ratio)
    greatest = op.maximum(op.maximum(parts[0], parts[1]), op.maximum(parts[2], parts[3]))
    return op.max(op.reshape(greatest, bins), (3, 5))


@onnx("DeformConv", op.take_along_axis, op.matmul, op.bias_add)
def deform_conv(
    x,
    w,
    offset,
    b=None,
    mask=None,
    *,
    dilations,
    group,
    kernel_shape,
    offset_group,
    pads,
    strides,
    call,
):
    """A convolution whose every tap is moved by an offset of its own (Dai et al., Deformable
    Convolutional Networks, 2017), and weighted by a mask. Elements outside are 0.
    """
    if x.ndim != 4:
        raise Unconvertible("deformed windows over other than 2 axes are not supported")
    batch, channels, height, width = (static_extent(d, "the image") for d in x.shape)
    outputs, inner, *kernel = (static_extent(d, "the weight") for d in w.shape)
    rows, columns = (static_extent(d, "the offsets") for d in offset.shape[2:])
    dilation, stride, pads = many(dilations, 2), many(strides, 2), many(pads, 4, 0)
    taps, results = prod(kernel), rows * columns
    own = []
    for i, extent in enumerate((rows, columns)):
        at = np.arange(kernel[i])[:, None] * dilation[i] - pads[i]
        own.append(at + np.arange(extent)[None, :] * stride[i])
    whole = (*kernel, rows, columns)
    y = np.broadcast_to(own[0][:, None, :, None], whole).reshape(taps, results)
    z = np.broadcast_to(own[1][None, :, None, :], whole).reshape(taps, results)
    moved = op.reshape(offset, (batch, offset_group, taps, 2, results))
    dy, dz = (op.squeeze(part, (3,)) for part in op.split(moved, 2, 3))
    dy, dz = widened(dy), widened(dz)
    y, z = op.add(dy, constant(y, dy.dtype, call)), op.add(dz, constant(z, dy.dtype, call))
    found = corners(y, z, height, width, clamps=False)
    each = channels // offset_group
    image = op.reshape(x, (batch, offset_group, each, height * width))
    total = None
    for place, weight in zip(*found, strict=True):
        weight = cast_to(weight, x.dtype)
        index = op.reshape(place, (batch, offset_group, 1, taps * results))
        index = op.broadcast_to(index, (batch, offset_group, each, taps * results))
        values = op.take_along_axis(image, index, 3)
        part = op.multiply(values, op.reshape(weight, (batch, offset_group, 1, taps * results)))
        total = part if total is None else op.add(total, part)
    if mask is not None:
        total = op.multiply(total, op.reshape(mask, (batch, offset_group, 1, taps * results)))
    rows_of_weights = op.reshape(w, (group, outputs // group, inner * taps))
    patches = op.reshape(total, (batch, group, inner * taps, results))
    result = op.reshape(op.matmul(rows_of_weights, patches), (batch, outputs, rows, columns))
    return with_bias(result, b)


def _number(value, what, otherwise):
    if value is None:
        return otherwise
    return required_number(value, what)


@onnx("NonMaxSuppression", op.non_max_suppression, op.argwhere)
def non_max_suppression(
    boxes,
    scores,
    limit=None,
    overlap=None,
    threshold=None,
    *,
    center_point_box,
    call,
):
    """Rows (image, class, box) of what is kept, int64[?, 3].

    boxes: [N, boxes, 4], two opposite corners, or with ``center_point_box`` (x, y, width, height)
    around a centre. scores: [N, classes, boxes]. A box is dropped if it overlaps a better one of
    its class by more than the threshold.
    """
    most = int(_number(limit, "the number of boxes", 0))
    least = _number(threshold, "the threshold of scores", None)
    iou = next_threshold(float(_number(overlap, "the overlap", 0.0)))
    if most <= 0:
        return constant([], "int64", call).reshape((0, 3))
    if center_point_box:
        x, y, width, height = op.split(boxes, 4, 2)
        half_w, half_h = op.multiply(width, 0.5), op.multiply(height, 0.5)
        corners = (op.subtract(x, half_w), op.subtract(y, half_h))
        boxes = op.concat((*corners, op.add(x, half_w), op.add(y, half_h)), 2)
    images, classes, count = scores.shape
    if any(n is UNKNOWN for n in (*boxes.shape, *scores.shape)):
        raise Unconvertible("it takes no boxes or scores of extents that depend on values")
    flat = op.reshape(scores, (images * classes, count))
    good = op.ones_like(flat, "bool") if least is None else op.greater(flat, least)
    kept = suppress_boxes(repeat_per_class(boxes, classes), flat, good, most, iou, call).indices
    return rows_of_selected(kept, classes, call)
