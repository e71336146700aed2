"""Converters of image resizing."""

from __future__ import annotations

from typing import Any

import numpy as np

from meta import op
from meta.base.dtype import is_float
from meta.frontend.core import CallSite, Unconvertible
from meta.frontend.core.arithmetic import cast_to
from meta.frontend.relay.converters.image_sampling import cropped
from meta.frontend.relay.layout import change_layout, read_layout
from meta.frontend.relay.registry import relay
from meta.runtime.ndarray import array

CROP = "tf_crop_and_resize"


def _ints(size: Any) -> tuple[int, ...]:
    if not size:
        raise Unconvertible("the attribute size is missing")
    return tuple(int(extent) for extent in size)


def _in_floats(data: Any, method: str, out_dtype: str) -> tuple[Any, str]:
    """Return data as floats where numbers between its elements are computed, and the result's
    dtype.
    """
    dtype = out_dtype or data.dtype
    if is_float(data.dtype) or method == "nearest_neighbor":
        return data, dtype
    return op.cast(data, "float32"), dtype


def _resized(resize: Any, letters: str, data: Any, layout: str, *options: Any) -> Any:
    """Resize in a layout that may split channels; ``letters`` is the base operator's own."""
    if read_layout(layout).is_plain:
        return resize(data, layout, *options)
    plain = change_layout(data, layout, letters)
    return change_layout(resize(plain, letters, *options), letters, layout)


@relay("image.resize2d", op.resize2d)
def resize2d(
    data: Any,
    *,
    size: tuple[int, ...],
    roi: tuple[float, ...] | None,
    layout: str,
    method: str,
    coordinate_transformation_mode: str,
    rounding_method: str,
    cubic_alpha: float,
    cubic_exclude: int,
    extrapolation_value: float,
    out_dtype: str,
    call: CallSite,
) -> Any:
    mode = coordinate_transformation_mode
    values, dtype = _in_floats(data, method, out_dtype)
    if mode == CROP:
        images = change_layout(values, layout, "NHWC")
        result = _crop(images, _ints(size), roi, method, extrapolation_value, call)
        return cast_to(change_layout(result, "NHWC", layout), dtype)

    def resize(x: Any, order: str) -> Any:
        return op.resize2d(
            x, _ints(size), order, method, mode, rounding_method, cubic_alpha, int(cubic_exclude)
        )

    return cast_to(_resized(resize, "NCHW", values, layout), dtype)


def _crop(
    images: Any, size: tuple[int, ...], roi: Any, method: str, outside: float, call: CallSite
) -> Any:
    """Return the part ``roi`` (y1, x1, y2, x2) of every image [N, H, W, C], resized."""
    if method == "cubic":
        raise Unconvertible(f"the method 'cubic' with the coordinate mode {CROP!r}")
    if not roi or len(roi) != 4:
        raise Unconvertible(f"the coordinate mode {CROP!r} needs a roi of four numbers")
    count = images.shape[0]
    values = images if is_float(images.dtype) else op.cast(images, "float32")
    boxes = array(np.tile(np.float64(roi), (count, 1)), values.dtype, device=call.device)
    numbers = array(np.arange(count), device=call.device)
    cut = cropped(values, boxes, numbers, (size[0], size[1]), method, outside, call)
    return cast_to(cut, images.dtype)


@relay("image.resize1d", op.resize1d)
def resize1d(
    data: Any,
    *,
    size: tuple[int, ...],
    layout: str,
    method: str,
    coordinate_transformation_mode: str,
    rounding_method: str,
    cubic_alpha: float,
    cubic_exclude: int,
    out_dtype: str,
) -> Any:
    _no_crop(coordinate_transformation_mode)
    values, dtype = _in_floats(data, method, out_dtype)

    def resize(x: Any, order: str) -> Any:
        return op.resize1d(
            x, _ints(size), order, method, coordinate_transformation_mode, rounding_method,
            cubic_alpha, int(cubic_exclude),
        )  # fmt: skip

    return cast_to(_resized(resize, "NCW", values, layout), dtype)


@relay("image.resize3d", op.resize3d)
def resize3d(
    data: Any,
    *,
    size: tuple[int, ...],
    layout: str,
    method: str,
    coordinate_transformation_mode: str,
    rounding_method: str,
    cubic_alpha: float,
    cubic_exclude: int,
    out_dtype: str,
) -> Any:
    _no_crop(coordinate_transformation_mode)
    method = "linear" if method == "trilinear" else method  # its name in TVM 0.7
    values, dtype = _in_floats(data, method, out_dtype)

    def resize(x: Any, order: str) -> Any:
        return op.resize3d(
            x, _ints(size), order, method, coordinate_transformation_mode, rounding_method,
            cubic_alpha, int(cubic_exclude),
        )  # fmt: skip

    return cast_to(_resized(resize, "NCDHW", values, layout), dtype)


def _no_crop(mode: str) -> None:
    if mode == CROP:
        raise Unconvertible(f"the coordinate mode {CROP!r} is for images", hint="image.resize2d")


@relay("image.resize", op.resize2d)
def resize(
    data: Any,
    *,
    size: tuple[int, ...],
    layout: str,
    method: str,
    coordinate_transformation_mode: str,
    align_corners: bool | None,
    out_dtype: str,
) -> Any:
    """Resizing in TVM 0.6 (align_corners) and 0.7 (a coordinate mode)."""
    mode = coordinate_transformation_mode
    if align_corners is not None:
        mode = "align_corners" if align_corners else "asymmetric"
    names = {"bilinear": "linear", "bicubic": "cubic", "nearest_neighbor": "nearest_neighbor"}
    method = names.get(method.lower(), method)
    values, dtype = _in_floats(data, method, out_dtype)

    def resized(x: Any, order: str) -> Any:
        return op.resize2d(x, _ints(size), order, method, mode)

    return cast_to(_resized(resized, "NCHW", values, layout), dtype)
