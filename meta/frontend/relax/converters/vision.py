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
