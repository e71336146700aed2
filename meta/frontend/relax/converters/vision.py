"""Converters of operators of object detection."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.relax.registry import relax


@relax("vision.get_valid_counts", op.get_valid_counts)
def get_valid_counts(x: Any, *, score_threshold: float, id_index: int, score_index: int) -> Any:
    return op.get_valid_counts(x, score_threshold, id_index, score_index)


@relax("vision.non_max_suppression", op.non_max_suppression)
def non_max_suppression(
    x: Any,
    count: Any,
    indices: Any,
    *,
    max_output_size: int,
    iou_threshold: float,
    force_suppress: bool,
    top_k: int,
    coord_start: int,
    score_index: int,
    id_index: int,
    return_indices: bool,
    invalid_to_bottom: bool,
    soft_nms_sigma: float,
    score_threshold: float,
) -> Any:
    if soft_nms_sigma or score_threshold:
        raise Unconvertible("soft suppression and a threshold of scores are not supported")
    return op.non_max_suppression(
        x, count, indices, max_output_size, iou_threshold, force_suppress, top_k, coord_start,
        score_index, id_index, return_indices, invalid_to_bottom,
    )  # fmt: skip


@relax("vision.roi_align", op.roi_align)
def roi_align(
    x: Any,
    rois: Any,
    *,
    pooled_size: tuple[int, ...],
    spatial_scale: float,
    sample_ratio: int,
    aligned: bool,
    layout: str,
    mode: str,
) -> Any:
    if aligned:
        raise Unconvertible("regions that are aligned by half an element are not supported")
    return op.roi_align(x, rois, pooled_size, spatial_scale, sample_ratio, layout, mode)


@relax("vision.roi_pool", op.roi_pool)
def roi_pool(
    x: Any, rois: Any, *, pooled_size: tuple[int, ...], spatial_scale: float, layout: str
) -> Any:
    return op.roi_pool(x, rois, pooled_size, spatial_scale, layout)


@relax("vision.multibox_transform_loc", op.exp, op.softmax)
def multibox_transform_loc(
    scores: Any,
    places: Any,
    anchors: Any,
    *,
    clip: bool,
    threshold: float,
    variances: tuple[float, ...],
    keep_background: bool,
    apply_softmax: bool,
) -> Any:
    """(boxes [B, N, 4] as two corners (y, x, y, x), scores [B, C, N]) of TFLite's detectors.

    scores: [B, C, N]. places: [B, 4 * N], (x, y, w, h) relative to anchors [1, N, 4], which are
    (left, top, right, bottom).
    """
    x, y, w, h = op.split(op.reshape(places, (places.shape[0], -1, 4)), 4, 2)
    left, top, right, bottom = op.split(anchors, 4, 2)
    width, height = right - left, bottom - top
    x = x * variances[0] * width + (left + right) * 0.5
    y = y * variances[1] * height + (top + bottom) * 0.5
    half_w = op.exp(w * variances[2]) * width * 0.5
    half_h = op.exp(h * variances[3]) * height * 0.5
    boxes = op.concatenate((y - half_h, x - half_w, y + half_h, x + half_w), 2)
    boxes = op.clip(boxes, 0.0, 1.0) if clip else boxes
    scores = op.softmax(scores, 1) if apply_softmax else scores
    scores = scores * op.cast(op.greater_equal(scores, threshold), scores.dtype)
    if not keep_background:
        rest = op.strided_slice(scores, (0, 1), (scores.shape[0], scores.shape[1]))
        scores = op.concatenate((op.zeros_like(scores[:, :1]), rest), 1)
    return boxes, scores
