"""Gradients of convolutions. The three operators are each other's gradients.

A layout belongs to x, w or the result wherever they appear, so all three take the same ones.
Transposed convolutions have the same gradients, with one more number in the window."""

from meta import op
from meta.grad.core import gradient
from meta.ir.types import TensorType


def unused(y, dy):
    """Return the gradient of the forward result, which is not read; ``dy`` has its type."""
    return None if y is None else op.zeros_like(dy)


def convolution(conv, conv_dx, conv_dw):
    """Register the gradients of a convolution over any number of axes, and of its gradients."""

    @gradient(conv)
    def by_input_and_kernel(
        x, w, dy, stride, padding, dilation, groups, layout, kernel_layout, out_layout
    ):
        options = (stride, padding, dilation, groups, layout, kernel_layout, out_layout)
        return conv_dx(w, None, dy, x.shape, *options), conv_dw(x, None, dy, w.shape, *options)

    @gradient(conv_dx)
    def of_dx(
        x_or_w, y: TensorType, dy, dy_, stride, padding, dilation, groups,
        layout, kernel_layout, out_layout,
    ):  # fmt: skip
        """dx is linear in w and in dy; what multiplies them is a convolution with the other."""
        options = (stride, padding, dilation, groups, layout, kernel_layout, out_layout)
        dw = conv_dw(dy_, None, dy, x_or_w.shape, *options)
        return dw, unused(y, dy), conv(dy_, x_or_w, *options)

    @gradient(conv_dw)
    def of_dw(
        x_or_w, y: TensorType, dy, dy_, stride, padding, dilation, groups,
        layout, kernel_layout, out_layout,
    ):  # fmt: skip
        """As for dx: dw is linear in x and in dy."""
        options = (stride, padding, dilation, groups, layout, kernel_layout, out_layout)
        dx = conv_dx(dy_, None, dy, x_or_w.shape, *options)
        return dx, unused(y, dy), conv(x_or_w, dy_, *options)


convolution(op.conv1d, op.conv1d_dx, op.conv1d_dw)


convolution(op.conv2d, op.conv2d_dx, op.conv2d_dw)


convolution(op.conv3d, op.conv3d_dx, op.conv3d_dw)


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


transposed(op.conv1d_transpose, op.conv1d_transpose_dx, op.conv1d_transpose_dw)


transposed(op.conv2d_transpose, op.conv2d_transpose_dx, op.conv2d_transpose_dw)


transposed(op.conv3d_transpose, op.conv3d_transpose_dx, op.conv3d_transpose_dw)
