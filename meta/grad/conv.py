"""Gradients of convolutions. The three operators are each other's gradients."""

from meta import op
from meta.grad.core import gradient
from meta.op.core.window import DATA, KERNEL, permutation


def swap(x, layout, to):
    """Return ``x``, of ``layout``, in the order ``to``."""
    return x if layout == to else op.transpose(x, permutation(layout, to, "layout"))


def unused(y):
    """Return the gradient of the forward result, which is not read."""
    return None if y is None else op.zeros_like(y)


def convolution(conv, conv_dx, conv_dw):
    """Register the gradients of a convolution over any number of axes, and of its gradients."""

    @gradient(conv)
    def by_input_and_kernel(
        x, w, dy, stride, padding, dilation, groups, layout, kernel_layout, out_layout
    ):
        data, kernel = DATA[x.ndim - 2], KERNEL[x.ndim - 2]
        x, w, dy = swap(x, layout, data), swap(w, kernel_layout, kernel), swap(dy, out_layout, data)
        window = (stride, padding, dilation, groups)
        dx = conv_dx(w, None, dy, x.shape, *window)
        dw = conv_dw(x, None, dy, w.shape, *window)
        return swap(dx, data, layout), swap(dw, kernel, kernel_layout)

    @gradient(conv_dx)
    def of_dx(x_or_w, y, dy, dy_, stride, padding, dilation, groups):
        """dx is linear in w and in dy; what multiplies them is a convolution with the other."""
        window = (stride, padding, dilation, groups)
        dw = conv_dw(dy_, None, dy, x_or_w.shape, *window)
        return dw, unused(y), conv(dy_, x_or_w, *window)

    @gradient(conv_dw)
    def of_dw(x_or_w, y, dy, dy_, stride, padding, dilation, groups):
        """As for dx: dw is linear in x and in dy."""
        window = (stride, padding, dilation, groups)
        dx = conv_dx(dy_, None, dy, x_or_w.shape, *window)
        return dx, unused(y), conv(x_or_w, dy_, *window)


convolution(op.conv2d, op.conv2d_dx, op.conv2d_dw)
