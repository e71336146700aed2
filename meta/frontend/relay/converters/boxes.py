"""Converters of object detection: prior boxes, decoding, and what is picked out of many boxes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meta import op
from meta.frontend.core import CallSite, Unconvertible
from meta.frontend.relay.registry import relay
from meta.runtime.ndarray import array

relay.same("vision.roi_align", op.roi_align)
relay.same("vision.roi_pool", op.roi_pool)


@relay("vision.get_valid_counts", op.get_valid_counts)
def get_valid_counts(
    data: Any,
    threshold: Any = None,
    *,
    score_threshold: float | None,
    id_index: int,
    score_index: int,
) -> Any:
    # Up to TVM 0.7 the threshold is an attribute.
    limit = threshold if threshold is not None else float(score_threshold or 0.0)
    return op.get_valid_counts(data, limit, int(id_index), int(score_index))


@relay("vision.non_max_suppression", op.non_max_suppression)
def non_max_suppression(
    data: Any,
    valid_count: Any,
    indices: Any = None,
    limit: Any = None,
    threshold: Any = None,
    *,
    max_output_size: int | None,
    iou_threshold: float | None,
    force_suppress: bool,
    top_k: int,
    coord_start: int,
    score_index: int,
    id_index: int,
    return_indices: bool,
    invalid_to_bottom: bool,
    call: CallSite,
) -> Any:
    """TVM 0.6 gives (data, valid_count), 0.7 adds the indices and how many to keep, 0.8 the
    threshold; what is no argument is an attribute.
    """
    named = indices
    limit = (-1 if max_output_size is None else int(max_output_size)) if limit is None else limit
    if threshold is None:
        threshold = 0.5 if iou_threshold is None else float(iou_threshold)
    if indices is None:
        batch, boxes = data.shape[:2]
        numbers = array(np.arange(boxes, dtype=np.int32), device=call.device)
        named = op.broadcast_to(numbers, (batch, boxes))
    result = op.non_max_suppression(
        data,
        valid_count,
        named,
        limit,
        threshold,
        bool(force_suppress),
        int(top_k),
        int(coord_start),
        int(score_index),
        int(id_index),
        bool(return_indices),
        bool(invalid_to_bottom),
    )  # fmt: skip
    return result[0] if return_indices and indices is None else result


@relay("vision.multibox_prior")
def multibox_prior(
    data: Any,
    *,
    sizes: tuple[float, ...],
    ratios: tuple[float, ...],
    steps: tuple[float, ...],
    offsets: tuple[float, ...],
    clip: bool,
    call: CallSite,
) -> Any:
    """The anchors of SSD (Liu et al., 2016): corners x1, y1, x2, y2 in units of the image.

    They follow from the extents of ``data`` alone.
    """
    height, width = data.shape[2:]
    if not (isinstance(height, int) and isinstance(width, int)):
        raise Unconvertible("the anchors need a known height and width")
    step_y, step_x = (s if s > 0 else 1.0 / n for s, n in zip(steps, (height, width), strict=True))
    shapes = [(s, 1.0) for s in sizes] + [(sizes[0], math.sqrt(r)) for r in ratios[1:]]
    half_w = np.array([s * height / width * root / 2.0 for s, root in shapes])
    half_h = np.array([s / root / 2.0 for s, root in shapes])
    y = ((np.arange(height) + offsets[0]) * step_y)[:, None, None]
    x = ((np.arange(width) + offsets[1]) * step_x)[None, :, None]
    corners = np.broadcast_arrays(x - half_w, y - half_h, x + half_w, y + half_h)
    boxes = np.stack(corners, -1).reshape(1, -1, 4)
    return array(np.clip(boxes, 0, 1) if clip else boxes, "float32", device=call.device)


@relay("vision.multibox_transform_loc", op.get_valid_counts)
def multibox_transform_loc(
    cls_prob: Any,
    loc_pred: Any,
    anchor: Any,
    *,
    clip: bool,
    threshold: float,
    variances: tuple[float, ...],
) -> Any:
    """Decode SSD's predictions: (boxes [N, anchors, 6], how many are not background int32[N]).

    cls_prob: [N, classes, anchors], class 0 is the background. loc_pred: [N, anchors * 4]. anchor:
    [1, anchors, 4]. A row is (class, probability, x1, y1, x2, y2); those of background, or below
    the threshold, are left out, and behind the others all is -1.
    """
    batch, _, anchors = cls_prob.shape
    dtype = loc_pred.dtype
    foreground = cls_prob[:, 1:]
    score = op.max(foreground, 1)
    kind = op.cast(op.argmax(foreground, 1), dtype)
    present = op.logical_and(score >= float(threshold), score > -1.0)
    kind = op.where(present, kind, op.full_like(kind, -1.0))
    p = op.reshape(loc_pred, (batch, anchors, 4))
    vx, vy, vw, vh = (float(v) for v in variances)
    wide, high = anchor[:, :, 2] - anchor[:, :, 0], anchor[:, :, 3] - anchor[:, :, 1]
    x = p[:, :, 0] * vx * wide + (anchor[:, :, 0] + anchor[:, :, 2]) * 0.5
    y = p[:, :, 1] * vy * high + (anchor[:, :, 1] + anchor[:, :, 3]) * 0.5
    w, h = op.exp(p[:, :, 2] * vw) * wide * 0.5, op.exp(p[:, :, 3] * vh) * high * 0.5
    corners = [x - w, y - h, x + w, y + h]
    if clip:
        corners = [op.clip(c, 0.0, 1.0) for c in corners]
    rows = op.stack((kind, op.cast(score, dtype), *corners), 2)
    count, kept, _ = op.get_valid_counts(rows, float("-inf"), 0, 1)
    return kept, count


@relay("vision.yolo_reorg", op.space_to_depth)
def yolo_reorg(data: Any, *, stride: int) -> Any:
    """Darknet's reorg, which reads the memory of [C, H, W] as [C/s^2, H*s, W*s]."""
    batch, channels, height, width = data.shape
    s = int(stride)
    if channels % (s * s) or height % s or width % s:
        raise Unconvertible(
            f"yolo_reorg with stride {s} needs channels divisible by {s * s} and extents by {s}"
        )
    image = op.reshape(data, (batch, channels // (s * s), height, s, width, s))
    moved = op.transpose(image, (0, 3, 5, 1, 2, 4))
    return op.reshape(moved, (batch, channels * s * s, height // s, width // s))
