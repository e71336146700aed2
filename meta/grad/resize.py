"""Gradients of resizing, which is linear in the image."""

from meta import op
from meta.grad.core import gradient
from meta.ir.types import TensorType
from meta.op.core.resample import upsampled


def resizing(forward, backward):
    """Register the gradients of a resize over any number of axes, and of its gradient."""

    @gradient(forward)
    def of_resize(
        x, size, layout, method, coordinate_transformation_mode, rounding_method, cubic_alpha,
        cubic_exclude, out_dtype, dy,
    ):  # fmt: skip
        options = (
            layout, method, coordinate_transformation_mode, rounding_method, cubic_alpha,
            cubic_exclude, out_dtype,
        )  # fmt: skip
        return backward(x, dy, size, *options)

    @gradient(backward)
    def of_dx(
        x, dy: TensorType, size, layout, method, coordinate_transformation_mode, rounding_method,
        cubic_alpha, cubic_exclude, dy_,
    ):  # fmt: skip
        options = (
            layout, method, coordinate_transformation_mode, rounding_method, cubic_alpha,
            cubic_exclude, dy.dtype,
        )  # fmt: skip
        return op.zeros_like(x), forward(dy_, size, *options)


resizing(op.resize1d, op.resize1d_dx)
resizing(op.resize2d, op.resize2d_dx)
resizing(op.resize3d, op.resize3d_dx)


@gradient(op.upsampling)
def upsampling(x, scale_h, scale_w, layout, method, align_corners, dy):
    sizes = tuple(x.shape[layout.index(letter)] for letter in "HW")
    size, method, mode = upsampled(sizes, (scale_h, scale_w), method, align_corners)
    return op.resize2d_dx(x, dy, size, layout, method, mode)
