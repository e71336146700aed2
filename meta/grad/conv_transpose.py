"""Gradients of transposed convolutions: those of `conv.py`, with one more number in the window."""

from meta import op
from meta.grad.conv import unused
from meta.grad.core import gradient
from meta.ir.types import TensorType


def transposed(conv, conv_dx, conv_dw):
    """Register the gradients of a transposed convolution over any number of axes, and of these."""

    @gradient(conv)
    def by_input_and_kernel(
        x, w, dy, stride, padding, output_padding, dilation, groups,
        layout, kernel_layout, out_layout,
    ):  # fmt: skip
        window = (stride, padding, output_padding, dilation, groups)
        options = (*window, layout, kernel_layout, out_layout)
        return conv_dx(w, None, dy, x.shape, *options), conv_dw(x, None, dy, w.shape, *options)

    @gradient(conv_dx)
    def of_dx(
        x_or_w, y: TensorType, dy, dy_, stride, padding, output_padding, dilation, groups,
        layout, kernel_layout, out_layout,
    ):  # fmt: skip
        """dx is linear in w and in dy."""
        window = (stride, padding, output_padding, dilation, groups)
        options = (*window, layout, kernel_layout, out_layout)
        dw = conv_dw(dy_, None, dy, x_or_w.shape, *options)
        return dw, unused(y, dy), conv(dy_, x_or_w, *options)

    @gradient(conv_dw)
    def of_dw(
        x_or_w, y: TensorType, dy, dy_, stride, padding, output_padding, dilation, groups,
        layout, kernel_layout, out_layout,
    ):  # fmt: skip
        """dw is linear in x and in dy."""
        window = (stride, padding, output_padding, dilation, groups)
        options = (*window, layout, kernel_layout, out_layout)
        dx = conv_dx(dy_, None, dy, x_or_w.shape, *options)
        return dx, unused(y, dy), conv(x_or_w, dy_, *options)


transposed(op.conv2d_transpose, op.conv2d_transpose_dx, op.conv2d_transpose_dw)
