"""Gradients of pooling of regions of interest.

The regions get zeros; torchvision has no gradient in them either. A detector takes its proposals as
given, and moving a region changes the number of its samples in steps. The two operators that choose
among the samples of "max" give their data zeros, too: that choice changes in steps.
"""

from meta import op
from meta.grad.core import gradient, not_differentiable


@gradient(op.roi_align)
def roi_align(data, rois, dy, *options):
    return op.roi_align_dx(data, rois, dy, *options), op.zeros_like(rois)


@gradient(op.roi_align_dx)
def roi_align_dx(data, rois, dy_, *options):
    return op.zeros_like(data), op.zeros_like(rois), op.roi_align_ddy(data, rois, dy_, *options)


@gradient(op.roi_align_ddy)
def roi_align_ddy(data, rois, dy, *options):
    return op.zeros_like(data), op.zeros_like(rois), op.roi_align_dx(data, rois, dy, *options)


not_differentiable(
    op.roi_pool,
    why="where the greatest element of a bin lies is not kept; roi_align is differentiable",
    missing=True,
)
