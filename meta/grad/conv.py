"""Gradients of convolutions. The three operators are each other's gradients."""

from meta import op
from meta.grad.core import gradient
from meta.op.core.window import permutation


def _from(x, layout, canonical):
    """Return ``x`` in canonical order."""
    return x if layout == canonical else op.transpose(x, permutation(layout, canonical, "layout"))


@gradient(op.conv2d)
def conv2d(x, w, dy, stride, padding, dilation, groups, layout, kernel_layout, out_layout):
    x, w = _from(x, layout, "NCHW"), _from(w, kernel_layout, "OIHW")
    dy = _from(dy, out_layout, "NCHW")
    window = (stride, padding, dilation, groups)
    dx = op.conv2d_dx(w, None, dy, x.shape, *window)
    dw = op.conv2d_dw(x, None, dy, w.shape, *window)
    return _from(dx, "NCHW", layout), _from(dw, "OIHW", kernel_layout)


@gradient(op.conv2d_dx)
def conv2d_dx(x_or_w, dy, dy_, stride, padding, dilation, groups):
    """dx is linear in w and in dy; what multiplies them is a convolution with the other."""
    window = (stride, padding, dilation, groups)
    dw = op.conv2d_dw(dy_, None, dy, x_or_w.shape, *window)
    return dw, None, op.conv2d(dy_, x_or_w, *window)


@gradient(op.conv2d_dw)
def conv2d_dw(x_or_w, dy, dy_, stride, padding, dilation, groups):
    """As for `conv2d_dx`: dw is linear in x and in dy."""
    window = (stride, padding, dilation, groups)
    dx = op.conv2d_dx(dy_, None, dy, x_or_w.shape, *window)
    return dx, None, op.conv2d(x_or_w, dy_, *window)
