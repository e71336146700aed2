"""Gradients of resizing, which is linear in the image."""

from meta import op
from meta.grad.core import gradient
from meta.ir.types import TensorType
from meta.op.core.resample import upsampled


@gradient(op.resize2d)
def resize2d(
    x,
    size,
    layout,
    method,
    coordinate_transformation_mode,
    rounding_method,
    cubic_alpha,
    cubic_exclude,
    out_dtype,
    dy,
):
    options = (
        layout, method, coordinate_transformation_mode, rounding_method, cubic_alpha,
        cubic_exclude, out_dtype,
    )  # fmt: skip
    return op.resize2d_dx(x, dy, size, *options)


@gradient(op.resize2d_dx)
def resize2d_dx(
    x,
    dy: TensorType,
    size,
    layout,
    method,
    coordinate_transformation_mode,
    rounding_method,
    cubic_alpha,
    cubic_exclude,
    dy_,
):
    options = (
        layout, method, coordinate_transformation_mode, rounding_method, cubic_alpha,
        cubic_exclude, dy.dtype,
    )  # fmt: skip
    return op.zeros_like(x), op.resize2d(dy_, size, *options)


@gradient(op.upsampling)
def upsampling(x, scale_h, scale_w, layout, method, align_corners, dy):
    sizes = tuple(x.shape[layout.index(letter)] for letter in "HW")
    size, method, mode = upsampled(sizes, (scale_h, scale_w), method, align_corners)
    return op.resize2d_dx(x, dy, size, layout, method, mode)
