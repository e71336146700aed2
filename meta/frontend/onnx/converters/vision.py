"""Converters of object detection."""

from __future__ import annotations

from meta import op
from meta.frontend.core.arguments import constant
from meta.frontend.core.arithmetic import cast_to
from meta.frontend.core.operators import next_threshold, repeat_per_class, suppress_boxes
from meta.frontend.onnx.converters.movement import required_number
from meta.frontend.onnx.registry import onnx


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
    flat = op.reshape(scores, (images * classes, count))
    good = op.ones_like(flat, "bool") if least is None else op.greater(flat, least)
    kept = suppress_boxes(repeat_per_class(boxes, classes), flat, good, most, iou, call).indices
    found = op.argwhere(op.greater_equal(kept, 0))
    row = op.take(found, constant(0, "int64", call), 1)
    box = cast_to(op.gather_nd(kept, op.permute_dims(found)), "int64")
    return op.stack((op.floor_divide(row, classes), op.remainder(row, classes), box), 1)
