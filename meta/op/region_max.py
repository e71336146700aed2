"""Maxima over regions of interest. Samples of regions are in `regions.py`."""

from meta.op.core import Ints, Tensor, op
from meta.op.regions import images, pooled


@op(indices=images)
def roi_pool(
    data: Tensor, rois: Tensor, pooled_size: Ints, spatial_scale: float, layout: str = "NCHW"
) -> Tensor:
    """The greatest elements of the parts of regions (Girshick, Fast R-CNN, 2015).

    data, rois, pooled_size, spatial_scale and layout are as in `roi_align`. Corners are rounded to
    elements (halves up) and belong to the region, which has at least the extents 1. Its
    ``pooled_size`` bins begin at the element in which their exact beginning lies and go on to their
    exact end, so neighbours may share elements. A bin without elements in the image gives 0, as
    does a region whose image's number is negative.
    Result: [regions, C, height, width] in ``layout``; a NaN is the greatest.

    As the operators of this name in TVM and MXNet, and ONNX's MaxRoiPool. Raises TypeInferError and
    IndexOutOfRange as roi_align does.
    """
    return pooled(data, rois, pooled_size, spatial_scale, layout, "max")
