"""Pooling of regions of interest."""

from collections.abc import Iterable
from typing import Any

from meta.op.core import Ints, Tensor, op
from meta.op.core.axes import Args, Axes, layout_labels
from meta.op.core.check import pair, require, require_float, require_ndim, require_same_dtype
from meta.op.core.indices import IndexRange

MODES = ("avg", "max")


MOST_SAMPLES = 1024
"""The most samples per axis of a bin where their number follows from its size."""


def region_pool_type(
    data: Tensor, rois: Tensor, pooled_size: Ints, spatial_scale: float, layout: str, mode: str
) -> Tensor:
    """Check the arguments of pooling regions; return the type of the result."""
    require_ndim(data, 4, "data")
    require_float(data, "data")
    require_same_dtype(data, rois)
    fits = rois.ndim == 2 and (rois.shape[1] == 5 or not isinstance(rois.shape[1], int))
    require(fits, "rois do not fit", expected="[regions, 5]", found=str(rois))
    require(layout in ("NCHW", "NHWC"), "unknown layout", expected="NCHW or NHWC", found=layout)
    require(mode in MODES, "unknown mode", expected=" or ".join(MODES), found=mode)
    size = pair(pooled_size, "pooled_size")
    require(min(size) >= 1, "pooled_size must be positive", found=pooled_size)
    require(spatial_scale > 0, "spatial_scale must be positive", found=spatial_scale)
    extents = dict(zip(layout, data.shape, strict=True))
    filled = all(extents[letter] != 0 for letter in "HW")
    require(filled, "data has an empty height or width", found=str(data))
    extents.update(N=rois.shape[0], H=size[0], W=size[1])
    return data.with_shape(tuple(extents[letter] for letter in layout))


def image_range(data: Tensor, layout: str) -> tuple[IndexRange, ...]:
    """Say what the numbers of images may be, the first elements of the rows of ``rois``."""
    count = data.shape[layout.index("N")]
    return (IndexRange("rois", count, "the images of data", any_below=True, along=(1, 0)),)


def _region_axes(args: Args) -> Iterable[Axes]:
    """Each channel by itself; a region gives the part of the result that has its number."""
    data, y = layout_labels(args["layout"], C="c"), layout_labels(args["layout"], N="r", C="c")
    tensors = {"data": data, "ddx": data, "rois": ("r", None), "dy": y}
    result = data if "dy" in args else y
    return (Axes({n: t for n, t in tensors.items() if n in args}, (result,)),)


@op(axes=_region_axes, indices=image_range)
def roi_align(
    data: Tensor,
    rois: Tensor,
    pooled_size: Ints,
    spatial_scale: float,
    sample_ratio: int = -1,
    layout: str = "NCHW",
    mode: str = "avg",
    aligned: bool = False,
) -> Tensor:
    """Cut regions of any size out of images and bring them to one size (He et al., Mask R-CNN).

    data: [N, C, H, W], or as ``layout`` "NHWC" says; floating point. rois: [regions, 5] of data's
    dtype: the number of the image, then x1, y1, x2, y2, which times ``spatial_scale`` are positions
    in data. A region has at least the extents 1; with ``aligned`` it has those that it is given,
    and moves by half an element, so that elements lie at their centers. It is cut into
    ``pooled_size`` (int or (height, width)) bins, and a bin has ``sample_ratio`` by
    ``sample_ratio`` samples, evenly; if it is not positive, as many as the bin has elements,
    rounded up, at most 1024 per axis; a bin without samples is 0. A sample is interpolated linearly
    between 2 by 2 elements; it is 0 more than 1 beyond the first or last element of an axis, and if
    the image's number is negative, as it is of rows that fill up.
    mode: "avg" gives the mean of a bin's samples, "max" the greatest (a NaN is that).
    Result: [regions, C, height, width] in ``layout``. Half precision is computed in float32.

    As torchvision's, and as ONNX's for the mean. Raises TypeInferError for unknown names, sizes
    below 1 and an empty height or width. Raises IndexOutOfRange for an image's number of N or more,
    or NaN: on CUDA with META_CHECK_INDICES only, without it the region is 0.
    """
    return region_pool_type(data, rois, pooled_size, spatial_scale, layout, mode)


@op(axes=_region_axes, indices=image_range, options=roi_align)
def roi_align_dx(data: Tensor, rois: Tensor, dy: Tensor, *options: Any) -> Tensor:
    """Gradient of `roi_align` in ``data``: every bin's dy, spread over what its samples read.

    For "max" it is the first of its greatest samples that gets dy. dy: of the shape of the forward
    result; other arguments as there. Result: type of data. It is linear in dy.
    """
    y: Tensor = roi_align.type_function(data, rois, *options)
    require_same_dtype(data, dy)
    fits = dy.shape == y.shape or not (dy.is_static and y.is_static)
    require(fits, "dy does not fit", expected=list(y.shape), found=str(dy))
    return data


@op(axes=_region_axes, indices=image_range, options=roi_align)
def roi_align_ddy(data: Tensor, rois: Tensor, ddx: Tensor, *options: Any) -> Tensor:
    """Gradient of `roi_align_dx` in ``dy``: `roi_align` of ``ddx``, in which ``data`` chooses.

    For "max" it is ddx at the sample at which data is greatest. ddx: of the type of data; other
    arguments and the result as in `roi_align`. It is linear in ddx.
    """
    require_same_dtype(data, ddx)
    fits = ddx.shape == data.shape or not (ddx.is_static and data.is_static)
    require(fits, "ddx does not fit", expected=str(data), found=str(ddx))
    y: Tensor = roi_align.type_function(data, rois, *options)
    return y


@op(axes=_region_axes, indices=image_range)
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
    return region_pool_type(data, rois, pooled_size, spatial_scale, layout, "max")
