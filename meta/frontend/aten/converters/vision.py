"""Operators of torchvision, which need not be installed: boxes and regions of images."""

from meta import op
from meta.frontend.aten.promotion import cast
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible
from meta.frontend.core.operators import next_threshold, suppress_boxes
from meta.op.core.function import device_of


@aten("torchvision.nms", op.non_max_suppression, op.argwhere)
def nms(boxes, scores, *, iou_threshold, call):
    """The places of the boxes that overlap no better one by more than the threshold, best first:
    int64[?].
    """
    if iou_threshold <= 0:
        raise Unconvertible(f"its threshold is {iou_threshold}, at which every overlap counts")
    boxes = op.expand_dims(boxes, 0)
    scores = op.expand_dims(scores, 0)
    everything = op.ones_like(scores, "bool")
    found = suppress_boxes(
        boxes, scores, everything, -1, next_threshold(iou_threshold), call
    ).indices
    row = op.squeeze(found, 0)
    places = op.squeeze(op.argwhere(op.greater_equal(row, 0)), 1)
    return cast(op.take(row, places, 0), "int64")


@aten("torchvision.roi_align", op.roi_align)
def roi_align(x, rois, *, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned):
    size = (pooled_height, pooled_width)
    return op.roi_align(x, rois, size, spatial_scale, sampling_ratio, aligned=aligned)


@aten("torchvision._roi_align_backward", op.roi_align_dx)
def roi_align_backward(
    dy,
    rois,
    *,
    spatial_scale,
    pooled_height,
    pooled_width,
    batch_size,
    channels,
    height,
    width,
    sampling_ratio,
    aligned,
):
    x = op.zeros((batch_size, channels, height, width), dy.dtype, device_of(dy))
    size = (pooled_height, pooled_width)
    return op.roi_align_dx(x, rois, dy, size, spatial_scale, sampling_ratio, aligned=aligned)


aten.refuse(
    "torchvision.roi_pool",
    "torchvision._roi_pool_backward",
    why="it returns the places of maxima, which are not computed here",
)
aten.refuse(
    "torchvision.deform_conv2d",
    "torchvision._deform_conv2d_backward",
    "torchvision.ps_roi_align",
    "torchvision._ps_roi_align_backward",
    "torchvision.ps_roi_pool",
    "torchvision._ps_roi_pool_backward",
    why="there is no such operator here",
)
