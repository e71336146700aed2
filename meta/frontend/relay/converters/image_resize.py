"""Converters of image resizing."""

from __future__ import annotations

from typing import Any

import numpy as np

from meta import op
from meta.base.dtype import is_float
from meta.frontend.core import CallSite, Unconvertible
from meta.frontend.core.arithmetic import cast_to
from meta.frontend.relay.arguments import constant
from meta.frontend.relay.converters.image_sampling import cropped
from meta.frontend.relay.layout import change_layout, read_layout
from meta.frontend.relay.registry import relay
from meta.op.core import Op

CROP = "tf_crop_and_resize"


def in_floats(data: Any, method: str) -> Any:
    """Return data as floats where numbers between its elements are computed."""
    if is_float(data.dtype) or method == "nearest_neighbor":
        return data
    return cast_to(data, "float32")


def _resized(
    base: Op,
    letters: str,
    data: Any,
    *,
    size: tuple[int, ...] | None,
    layout: str,
    method: str,
    out_dtype: str,
    **options: Any,
) -> Any:
    """Resize in a layout that may split channels; ``letters`` is the base operator's own."""
    if not size:
        raise Unconvertible("the attribute size is missing")
    if options["coordinate_transformation_mode"] == CROP:
        raise Unconvertible(f"the coordinate mode {CROP!r} is for images", hint="image.resize2d")
    order = layout if read_layout(layout).is_plain else letters
    x = change_layout(in_floats(data, method), layout, order)
    y = change_layout(base(x, tuple(size), order, method, **options), order, layout)
    return cast_to(y, out_dtype or data.dtype)


@relay("image.resize2d", op.resize2d)
def resize2d(
    data: Any,
    *,
    roi: tuple[float, ...] | None,
    extrapolation_value: float,
    call: CallSite,
    **options: Any,
) -> Any:
    """The region and the value outside of the image are those of one coordinate mode alone."""
    if options["coordinate_transformation_mode"] != CROP:
        return _resized(op.resize2d, "NCHW", data, **options)
    size, method, layout = options["size"], options["method"], options["layout"]
    if method == "cubic":
        raise Unconvertible(f"the method 'cubic' with the coordinate mode {CROP!r}")
    if not roi or len(roi) != 4:
        raise Unconvertible(f"the coordinate mode {CROP!r} needs a roi of four numbers")
    if not size:
        raise Unconvertible("the attribute size is missing")
    images = change_layout(data, layout, "NHWC")
    images = images if is_float(images.dtype) else op.cast(images, "float32")
    # The whole region is one box of every image: y1, x1, y2, x2.
    count = images.shape[0]
    boxes = constant(np.tile(np.float64(roi), (count, 1)), images.dtype, call)
    numbers = constant(np.arange(count), "int64", call)
    cut = cropped(images, boxes, numbers, (size[0], size[1]), method, extrapolation_value, call)
    return change_layout(cast_to(cut, options["out_dtype"] or data.dtype), "NHWC", layout)


# What is outside of the image has no meaning without the mode that is refused.
@relay("image.resize1d", op.resize1d, ignore=("roi", "extrapolation_value"))
def resize1d(data: Any, **options: Any) -> Any:
    return _resized(op.resize1d, "NCW", data, **options)


@relay("image.resize3d", op.resize3d, ignore=("roi", "extrapolation_value"))
def resize3d(data: Any, *, method: str, **options: Any) -> Any:
    """The method "linear" is called "trilinear" in TVM 0.7."""
    method = method.removeprefix("tri")
    return _resized(op.resize3d, "NCDHW", data, method=method, **options)


@relay("image.resize", op.resize2d)
def resize(
    data: Any,
    *,
    method: str,
    coordinate_transformation_mode: str,
    align_corners: bool | None,
    call: CallSite,
    **options: Any,
) -> Any:
    """Resizing in TVM 0.6 (align_corners, which is the default) and 0.7 (a coordinate mode)."""
    mode = coordinate_transformation_mode
    if align_corners is None and call.version is not None and call.version < (0, 7):
        align_corners = True
    if align_corners is not None:
        mode = "align_corners" if align_corners else "asymmetric"
    method = method.lower().removeprefix("bi")
    return _resized(
        op.resize2d, "NCHW", data, method=method, coordinate_transformation_mode=mode, **options
    )
