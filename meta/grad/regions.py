"""Gradients of the operators on regions of interest, in their order.

The regions get zeros; torchvision has no gradient in them either. A detector takes its proposals as
given, and moving a region changes the number of its samples in steps. So does data get zeros from
the two operators that choose by it among the samples of "max": that choice changes in steps, too.
"""

from meta import op
from meta.grad.core import gradient


@gradient(op.roi_align)
def roi_align(data, rois, pooled_size, spatial_scale, sample_ratio, layout, mode, dy):
    options = (pooled_size, spatial_scale, sample_ratio, layout, mode)
    return op.roi_align_dx(data, rois, dy, *options), op.zeros_like(rois)


@gradient(op.roi_align_dx)
def roi_align_dx(data, rois, pooled_size, spatial_scale, sample_ratio, layout, mode, dy_):
    options = (pooled_size, spatial_scale, sample_ratio, layout, mode)
    return op.zeros_like(data), op.zeros_like(rois), op.roi_align_ddy(data, rois, dy_, *options)


@gradient(op.roi_align_ddy)
def roi_align_ddy(data, rois, pooled_size, spatial_scale, sample_ratio, layout, mode, dy):
    options = (pooled_size, spatial_scale, sample_ratio, layout, mode)
    return op.zeros_like(data), op.zeros_like(rois), op.roi_align_dx(data, rois, dy, *options)
