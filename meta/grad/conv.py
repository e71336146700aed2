"""Gradients of convolutions. The three operators are each other's gradients."""

from meta import op
from meta.grad.core import gradient
from meta.op.core.window import permutation


def swap(x, layout, to):
    """Return ``x``, of ``layout``, in the order ``to``."""
    return x if layout == to else op.transpose(x, permutation(layout, to, "layout"))


@gradient(op.conv2d)
def conv2d(x, w, dy, stride, padding, dilation, groups, layout, kernel_layout, out_layout):
    x, w = swap(x, layout, "NCHW"), swap(w, kernel_layout, "OIHW")
    dy = swap(dy, out_layout, "NCHW")
    window = (stride, padding, dilation, groups)
    dx = op.conv2d_dx(w, None, dy, x.shape, *window)
    dw = op.conv2d_dw(x, None, dy, w.shape, *window)
    return swap(dx, "NCHW", layout), swap(dw, "OIHW", kernel_layout)


def unused(y):
    """Return the gradient of the forward result, which is not read."""
    return None if y is None else op.zeros_like(y)


@gradient(op.conv2d_dx)
def conv2d_dx(x_or_w, y, dy, dy_, stride, padding, dilation, groups):
    """dx is linear in w and in dy; what multiplies them is a convolution with the other."""
    window = (stride, padding, dilation, groups)
    dw = op.conv2d_dw(dy_, None, dy, x_or_w.shape, *window)
    return dw, unused(y), op.conv2d(dy_, x_or_w, *window)


@gradient(op.conv2d_dw)
def conv2d_dw(x_or_w, y, dy, dy_, stride, padding, dilation, groups):
    """As for `conv2d_dx`: dw is linear in x and in dy."""
    window = (stride, padding, dilation, groups)
    dx = op.conv2d_dx(dy_, None, dy, x_or_w.shape, *window)
    return dx, unused(y), op.conv2d(x_or_w, dy_, *window)
