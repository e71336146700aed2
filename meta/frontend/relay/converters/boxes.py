"""Converters of object detection: prior boxes, decoding, suppression, region proposals.

For suppression per class every (image, class) is a batch element of `non_max_suppression`.
"""

from __future__ import annotations

import math

import numpy as np

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import constant
from meta.frontend.core.operators import (
    decode_boxes,
    next_threshold,
    repeat_per_class,
    suppress_boxes,
    take_rows,
)
from meta.frontend.relay.registry import relay
from meta.runtime.ndarray import array

relay.same("vision.roi_align", op.roi_align)
relay.same("vision.roi_pool", op.roi_pool)


_FLAGS = ("force_suppress", "return_indices", "invalid_to_bottom")


@relay("vision.get_valid_counts", op.get_valid_counts)
def get_valid_counts(data, threshold=None, *, score_threshold, id_index, score_index):
    # Up to TVM 0.7 the threshold is an attribute.
    limit = threshold if threshold is not None else float(score_threshold or 0.0)
    return op.get_valid_counts(data, limit, int(id_index), int(score_index))


@relay("vision.non_max_suppression", op.non_max_suppression)
def non_max_suppression(
    data, valid_count, indices=None, limit=None, threshold=None, *, call, **options
):
    """TVM 0.6 gives (data, valid_count), 0.7 adds the indices and how many to keep, 0.8 the
    threshold; what is no argument is an attribute.
    """
    max_output_size, iou_threshold = options.pop("max_output_size"), options.pop("iou_threshold")
    named = indices
    limit = (-1 if max_output_size is None else int(max_output_size)) if limit is None else limit
    if threshold is None:
        threshold = 0.5 if iou_threshold is None else float(iou_threshold)
    if indices is None:
        batch, boxes = data.shape[:2]
        numbers = array(np.arange(boxes, dtype=np.int32), device=call.device)
        named = op.broadcast_to(numbers, (batch, boxes))
    flags = {n: bool(options.pop(n)) for n in _FLAGS}
    options = {n: int(v) for n, v in options.items()}
    result = op.non_max_suppression(data, valid_count, named, limit, threshold, **options, **flags)
    return result[0] if flags["return_indices"] and indices is None else result


@relay("vision.multibox_prior")
def multibox_prior(data, *, sizes, ratios, steps, offsets, clip, call):
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
def multibox_transform_loc(cls_prob, loc_pred, anchor, *, clip, threshold, variances):
    """Decode SSD's predictions: (boxes [N, anchors, 6], how many are not background int32[N]).

    cls_prob: [N, classes, anchors], class 0 is the background. loc_pred: [N, anchors * 4]. anchor:
    [1, anchors, 4]. A row is (class, probability, x1, y1, x2, y2); those of background, or below
    the threshold, are left out, and behind the others all is -1.
    """
    batch, _, anchors = cls_prob.shape
    dtype = loc_pred.dtype
    foreground = cls_prob[:, 1:]
    score = op.max(foreground, 1)
    kind = op.astype(op.argmax(foreground, 1), dtype)
    present = op.logical_and(score >= float(threshold), score > -1.0)
    kind = op.where(present, kind, op.full_like(kind, -1.0))
    places = op.reshape(loc_pred, (batch, anchors, 4))
    corners = op.concat(decode_boxes(places, anchor, tuple(map(float, variances))), 2)
    corners = op.clip(corners, 0.0, 1.0) if clip else corners
    found = op.stack((kind, op.astype(score, dtype)), 2)
    rows = op.concat((found, corners), 2)
    count, kept, _ = op.get_valid_counts(rows, float("-inf"), 0, 1)
    return kept, count


@relay("vision.yolo_reorg", op.space_to_depth)
def yolo_reorg(data, *, stride):
    """Darknet's reorg, which reads the memory of [C, H, W] as [C/s^2, H*s, W*s]."""
    batch, channels, height, width = data.shape
    s = int(stride)
    if channels % (s * s) or height % s or width % s:
        raise Unconvertible(
            f"yolo_reorg with stride {s} needs channels divisible by {s * s} and extents by {s}"
        )
    image = op.reshape(data, (batch, channels // (s * s), height, s, width, s))
    moved = op.permute_dims(image, (0, 3, 5, 1, 2, 4))
    return op.reshape(moved, (batch, channels * s * s, height // s, width // s))


def _numbers(count, dtype, call):
    return constant(np.arange(count), dtype, call)


def _scalar(value):
    return op.reshape(value, ()) if value.shape else value


@relay("vision.all_class_non_max_suppression", op.non_max_suppression)
def all_class_non_max_suppression(
    boxes, scores, limit, iou_threshold, score_threshold, *, output_format, call
):
    """ONNX's NonMaxSuppression, or TensorFlow's combined form, with all rows that there can be.

    boxes: [N, boxes, 4]; scores: [N, classes, boxes]. "onnx": (rows (image, class, box)
    int64[N * classes * boxes, 3], how many int64[1]). "tensorflow": (rows (class, box)
    int64[N, classes * boxes, 2], scores, how many int64[N]). Rows behind those are -1, scores 0.
    """
    batch, classes, count = scores.shape
    flat = op.reshape(scores, (batch * classes, count))
    threshold = op.astype(_scalar(score_threshold), scores.dtype)
    iou = op.astype(_scalar(iou_threshold), boxes.dtype)
    limit = _scalar(limit)
    limit = limit if limit.dtype in ("int32", "int64") else op.astype(limit, "int32")
    kept = suppress_boxes(
        repeat_per_class(boxes, classes), flat, flat > threshold, limit, iou, call
    )
    # TVM keeps nothing where the overlap that is allowed is none.
    allowed = iou > 0.0
    present = op.logical_and(kept.present, allowed)
    amount = op.where(allowed, kept.count, op.zeros_like(kept.count))
    shapes = {"onnx": (batch * classes * count,), "tensorflow": (batch, classes * count)}
    if output_format not in shapes:
        raise Unconvertible(f"the output format {output_format!r} is not known")
    shape = shapes[output_format]
    present = op.reshape(present, shape)
    # What is present comes first.
    order = op.argsort(op.astype(op.logical_not(present), "int32"))

    def collected(values, missing):
        values = op.broadcast_to(values, (batch, classes, count))
        values = op.take_along_axis(op.reshape(values, shape), order, len(shape) - 1)
        there = op.take_along_axis(present, order, len(shape) - 1)
        return op.where(there, values, op.full_like(values, missing))

    indices = op.astype(op.reshape(kept.indices, (batch, classes, count)), "int64")
    class_numbers = op.reshape(_numbers(classes, "int64", call), (1, classes, 1))
    columns = [collected(class_numbers, -1), collected(indices, -1)]
    if output_format == "onnx":
        images = op.reshape(_numbers(batch, "int64", call), (batch, 1, 1))
        rows = op.stack((collected(images, -1), *columns), 1)
        return rows, op.reshape(op.sum(op.astype(amount, "int64"), 0), (1,))
    best = op.take_along_axis(scores, op.maximum(indices, op.zeros_like(indices)), 2)
    total = op.sum(op.astype(op.reshape(amount, (batch, classes)), "int64"), 1)
    return op.stack(tuple(columns), 2), collected(best, 0.0), total


@relay("vision.regular_non_max_suppression", op.non_max_suppression)
def regular_non_max_suppression(
    boxes, scores, *, max_detections, num_classes, iou_threshold, score_threshold, call, **limits
):
    """TFLite's regular detection postprocessing: the best of all classes' boxes.

    boxes: [N, boxes, 4]; scores: [N, boxes, classes], the last ``num_classes`` of which count.
    Result: (boxes [N, max_detections, 4], classes float32, scores, how many int32[N]); rows behind
    those are 0.
    """
    batch, count, columns = scores.shape
    classes, most = int(num_classes), int(max_detections)
    own = op.permute_dims(scores[:, :, columns - classes :], (0, 2, 1))
    flat = op.reshape(own, (batch * classes, count))
    # Here a box is dropped by an overlap above the threshold, there by one that reaches it.
    iou = next_threshold(iou_threshold)
    valid = flat >= float(score_threshold)
    limit = int(limits["max_detections_per_class"])
    kept = suppress_boxes(repeat_per_class(boxes, classes), flat, valid, limit, iou, call)
    indices = op.astype(op.maximum(kept.indices, op.zeros_like(kept.indices)), "int64")
    best = op.take_along_axis(flat, indices, 1)
    lowest = op.full_like(best, float("-inf"))
    best, indices = (
        op.reshape(x, (batch, classes * count))
        for x in (op.where(kept.present, best, lowest), indices)
    )
    order = op.argsort(best, 1, True)[:, :most]
    found = order.shape[1]
    total = op.sum(op.reshape(kept.count, (batch, classes)), 1)
    total = op.astype(op.minimum(total, op.full_like(total, most)), "int32")
    there = op.expand_dims(total, 1) > op.expand_dims(_numbers(found, "int32", call), 0)

    def filled(values):
        mask = op.expand_dims(there, 2) if len(values.shape) == 3 else there
        values = op.where(mask, values, op.zeros_like(values))
        missing = (0, most - found, 0, 0) if len(values.shape) == 3 else (0, most - found)
        return op.pad.plain(values, (0, 0, *missing)) if most > found else values

    chosen = take_rows(boxes, op.take_along_axis(indices, order, 1))
    kinds = op.astype(op.floor_divide(order, op.full_like(order, count)), "float32")
    return filled(chosen), filled(kinds), filled(op.take_along_axis(best, order, 1)), total


@relay("vision.proposal", op.non_max_suppression)
def proposal(
    cls_prob, bbox_pred, im_info, *, scales, ratios, feature_stride, threshold, call, **rpn
):
    """The proposals of Faster R-CNN (Ren et al., 2015): [N * rpn_post_nms_top_n, 5].

    cls_prob: [N, 2 * anchors, H, W], the second half foreground. bbox_pred: [N, 4 * anchors, H, W].
    im_info: [N, 3], height, width and scale. A row is (image, x1, y1, x2, y2); if too few boxes are
    left, they are repeated.
    """
    batch, _, height, width = cls_prob.shape
    anchors = len(scales) * len(ratios)
    count = height * width * anchors
    base = np.array([_anchor(r, s, float(feature_stride)) for r in ratios for s in scales])
    y, x = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    shift = np.stack([x, y, x, y], -1)[:, :, None] * feature_stride
    corners = (base + shift).reshape(count, 4).T
    x1, y1, x2, y2 = (array(c, bbox_pred.dtype, device=call.device) for c in corners)
    delta = op.reshape(bbox_pred, (batch, anchors, 4, height, width))
    delta = op.reshape(op.permute_dims(delta, (0, 3, 4, 1, 2)), (batch, count, 4))
    score = op.permute_dims(cls_prob[:, anchors:], (0, 2, 3, 1))
    places = (delta[:, :, k] for k in range(4))
    boxes = _moved if rpn["iou_loss"] else _regressed
    info_height, info_width, scale = (im_info[:, k : k + 1] for k in range(3))
    bounds = (info_width - 1.0, info_height - 1.0) * 2
    x1, y1, x2, y2 = (
        op.maximum(op.minimum(c, bound), op.zeros_like(c))
        for c, bound in zip(boxes(x1, y1, x2, y2, *places), bounds, strict=True)
    )
    # Beyond the image's own part of the map there are no boxes.
    rows, columns = (op.trunc(v / float(feature_stride)) for v in (info_height, info_width))
    own_y, own_x = (_numbers(n, score.dtype, call) for n in (height, width))
    inside_y = op.reshape(own_y, (1, height, 1, 1)) < op.reshape(rows, (batch, 1, 1, 1))
    inside_x = op.reshape(own_x, (1, 1, width, 1)) < op.reshape(columns, (batch, 1, 1, 1))
    score = op.where(op.logical_and(inside_y, inside_x), score, op.full_like(score, -1.0))
    score = op.reshape(score, (batch, count))
    least = scale * float(rpn["rpn_min_size"])
    small = op.logical_or(x2 - x1 + 1.0 < least, y2 - y1 + 1.0 < least)
    grown = op.where(small, least * 0.5 + op.zeros_like(x1), op.zeros_like(x1))
    score = op.where(small, op.full_like(score, -1.0), score)
    found = op.stack((x1 - grown, y1 - grown, x2 + grown, y2 + grown), 2)
    before, post = rpn["rpn_pre_nms_top_n"], int(rpn["rpn_post_nms_top_n"])
    top = min(before, count) if before > 0 else count
    order = op.argsort.plain(score, 1, True, "int32")[:, :top]
    found, score = take_rows(found, order), op.take_along_axis(score, op.astype(order, "int64"), 1)
    # Corners are elements that belong to the box: its extents are one more than their difference.
    edges = array([0.0, 0.0, 1.0, 1.0], found.dtype, device=call.device)
    iou = next_threshold(threshold)
    everything = op.ones_like(score) > 0.0
    kept = suppress_boxes(found + edges, score, everything, -1, iou, call)
    turn = op.expand_dims(_numbers(post, "int32", call), 0)
    turn = op.remainder(turn, op.expand_dims(kept.count, 1))
    chosen = take_rows(found, op.take_along_axis(kept.indices, op.astype(turn, "int64"), 1))
    image = op.reshape(_numbers(batch, found.dtype, call), (batch, 1, 1))
    result = op.concat((op.broadcast_to(image, (batch, post, 1)), chosen), 2)
    return op.reshape(result, (batch * post, 5))


def _anchor(ratio, scale, base):
    """Return the corners of an anchor around the first element, as py-faster-rcnn rounds them."""
    centre = 0.5 * (base - 1.0)
    w = math.floor(math.sqrt(math.floor(base * base / ratio)) + 0.5) * scale
    h = math.floor(w / scale * ratio + 0.5) * scale
    half_w, half_h = 0.5 * (w - 1.0), 0.5 * (h - 1.0)
    return centre - half_w, centre - half_h, centre + half_w, centre + half_h


def _regressed(x1, y1, x2, y2, dx, dy, dw, dh):
    """Move centres by parts of the extents, and scale the extents by exponentials."""
    w, h = x2 - x1 + 1.0, y2 - y1 + 1.0
    x, y = dx * w + (x1 + (w - 1.0) * 0.5), dy * h + (y1 + (h - 1.0) * 0.5)
    half_w, half_h = (op.exp(dw) * w - 1.0) * 0.5, (op.exp(dh) * h - 1.0) * 0.5
    return x - half_w, y - half_h, x + half_w, y + half_h


def _moved(x1, y1, x2, y2, dx1, dy1, dx2, dy2):
    return x1 + dx1, y1 + dy1, x2 + dx2, y2 + dy2
