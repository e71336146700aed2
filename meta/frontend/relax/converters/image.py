"""Converters of operators on images, and of object detection."""

from __future__ import annotations

import numpy as np

from meta import op
from meta.frontend.core import Unconvertible, constant_value
from meta.frontend.core.operators import (
    decode_boxes,
    grid_sample,
    next_threshold,
    repeat_per_class,
    suppress_boxes,
)
from meta.frontend.relax.converters.movement import numbers
from meta.frontend.relax.registry import relax
from meta.runtime.ndarray import array

_OPTIONS = "method coordinate_transformation_mode rounding_method cubic_alpha cubic_exclude"
_RESIZING = ("layout", *_OPTIONS.split())
_BOXES = "max_output_size iou_threshold force_suppress top_k coord_start score_index id_index"
_SUPPRESSION = (*_BOXES.split(), "return_indices", "invalid_to_bottom")


_REGION = ("roi", "extrapolation_value")


@relax.each(op.resize2d, op.resize3d, form="image.{}", rest=(*_RESIZING, *_REGION))
def resize(base, x, size, *, out_dtype, **options):
    """Region and value outside are those of "tf_crop_and_resize" alone."""
    extents = tuple(numbers(size, "the size of an image"))
    return base(x, extents, *(options[n] for n in _RESIZING), out_dtype or "")


relax.same("vision.roi_pool", op.roi_pool, "pooled_size", "spatial_scale", "layout")
_COUNTED = ("score_threshold", "id_index", "score_index")
relax.same("vision.get_valid_counts", op.get_valid_counts, *_COUNTED)


relax("image.grid_sample", op.grid_sample)(grid_sample)


@relax("image.affine_grid", op.matmul)
def affine_grid(x, size, *, align_corners, call):
    """Positions [N, axes, ...] of a grid from -1 to 1, by matrices [N, axes, axes + 1]: of the
    first and last elements with align_corners, of outer edges without.
    """
    extents = tuple(numbers(size, "the size of a grid"))
    planes = np.meshgrid(*(_centres(e, align_corners) for e in extents), indexing="ij")
    rows = np.stack([p.reshape(-1) for p in (*planes[::-1], np.ones(extents))])
    places = x @ array(rows, x.dtype, device=call.device)
    return op.reshape(places, (x.shape[0], len(extents), *extents))


def _centres(extent, align_corners):
    if align_corners:
        return np.linspace(-1.0, 1.0, extent)
    return (2.0 * np.arange(extent) + 1.0) / extent - 1.0


@relax("vision.non_max_suppression", op.non_max_suppression, rest=_SUPPRESSION)
def non_max_suppression(x, count, indices, *, soft_nms_sigma, score_threshold, **options):
    if soft_nms_sigma or score_threshold:
        raise Unconvertible("soft suppression and a threshold of scores are not supported")
    return op.non_max_suppression(x, count, indices, **options)


@relax("vision.all_class_non_max_suppression", op.non_max_suppression, op.argwhere)
def all_class_non_max_suppression(
    boxes, scores, limit, iou_threshold, score_threshold, *, output_format, call
):
    """ONNX's NonMaxSuppression: (rows (image, class, box) int64[?, 3], how many int64[1]).

    boxes: [N, boxes, 4], two opposite corners. scores: [N, classes, boxes]. A box is dropped if it
    overlaps a better one by more than the threshold. Every class of an image is by itself.
    """
    if output_format != "onnx":
        raise Unconvertible(f"the output format {output_format!r} is not supported", hint="onnx")
    images, classes, count = scores.shape
    flat = op.reshape(scores, (images * classes, count))
    good = op.greater(flat, op.astype(op.reshape(score_threshold, ()), scores.dtype))
    most, overlap = int(_number(limit)), next_threshold(_number(iou_threshold))
    kept = suppress_boxes(repeat_per_class(boxes, classes), flat, good, most, overlap, call).indices
    found = op.argwhere(op.greater_equal(kept, 0))
    row = op.take(found, array(0, "int64", device=call.device), 1)
    box = op.astype(op.gather_nd(kept, op.permute_dims(found)), "int64")
    rows = op.stack((op.floor_divide(row, classes), op.remainder(row, classes), box), 1)
    return rows, op.reshape(op.sum(op.greater_equal(kept, 0)), (1,))


def _number(value):
    now = constant_value(value)
    if now is None:
        raise Unconvertible("a limit or threshold that depends on inputs is not supported")
    return now.item()


@relax("vision.roi_align", op.roi_align)
def roi_align(x, rois, *, pooled_size, spatial_scale, sample_ratio, aligned, layout, mode):
    return op.roi_align(x, rois, pooled_size, spatial_scale, sample_ratio, layout, mode, aligned)


@relax("vision.multibox_transform_loc", op.exp, op.softmax)
def multibox_transform_loc(
    scores, places, anchors, *, clip, threshold, variances, keep_background, apply_softmax
):
    """(boxes [B, N, 4] as two corners (y, x, y, x), scores [B, C, N]) of TFLite's detectors.

    scores: [B, C, N]. places: [B, 4 * N], (x, y, w, h) relative to anchors [1, N, 4], which are
    (left, top, right, bottom).
    """
    places = op.reshape(places, (places.shape[0], -1, 4))
    left, top, right, bottom = decode_boxes(places, anchors, variances)
    boxes = op.concat((top, left, bottom, right), 2)
    boxes = op.clip(boxes, 0.0, 1.0) if clip else boxes
    scores = op.softmax(scores, 1) if apply_softmax else scores
    scores = scores * op.astype(op.greater_equal(scores, threshold), scores.dtype)
    if not keep_background:
        rest = op.strided_slice(scores, (0, 1), (scores.shape[0], scores.shape[1]))
        scores = op.concat((op.zeros_like(scores[:, :1]), rest), 1)
    return boxes, scores
