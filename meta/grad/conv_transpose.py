"""Gradients of transposed convolutions. The three operators are each other's gradients."""

from meta import op
from meta.grad.conv import swap, unused
from meta.grad.core import gradient


@gradient(op.conv2d_transpose)
def conv2d_transpose(
    x, w, dy, stride, padding, output_padding, dilation, groups, layout, kernel_layout, out_layout
):
    x, w = swap(x, layout, "NCHW"), swap(w, kernel_layout, "IOHW")
    dy = swap(dy, out_layout, "NCHW")
    window = (stride, padding, output_padding, dilation, groups)
    dx = op.conv2d_transpose_dx(w, None, dy, x.shape, *window)
    dw = op.conv2d_transpose_dw(x, None, dy, w.shape, *window)
    return swap(dx, "NCHW", layout), swap(dw, "IOHW", kernel_layout)


@gradient(op.conv2d_transpose_dx)
def conv2d_transpose_dx(x_or_w, y, dy, dy_, stride, padding, output_padding, dilation, groups):
    """dx is linear in w and in dy."""
    window = (stride, padding, output_padding, dilation, groups)
    dw = op.conv2d_transpose_dw(dy_, None, dy, x_or_w.shape, *window)
    return dw, unused(y), op.conv2d_transpose(dy_, x_or_w, *window)


@gradient(op.conv2d_transpose_dw)
def conv2d_transpose_dw(x_or_w, y, dy, dy_, stride, padding, output_padding, dilation, groups):
    """dw is linear in x and in dy."""
    window = (stride, padding, output_padding, dilation, groups)
    dx = op.conv2d_transpose_dx(dy_, None, dy, x_or_w.shape, *window)
    return dx, unused(y), op.conv2d_transpose(x_or_w, dy_, *window)
