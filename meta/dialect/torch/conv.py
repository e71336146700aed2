"""Convolutions on ATen (oneDNN on the CPU, cuDNN on the GPU). Padding may differ on two sides."""

import torch
import torch.nn.functional as F

from meta import op
from meta.dialect import LIBRARY
from meta.dialect.torch import torch as dialect
from meta.op.core.check import pair
from meta.op.core.window import pads, permutation


def _geometry(x, stride, padding, dilation):
    """Return the input, padded if the sides differ, and convolution's own window arguments."""
    top, left, bottom, right = pads(padding)
    if (top, left) != (bottom, right):
        x, (top, left) = F.pad(x, (left, right, top, bottom)), (0, 0)
    return x, (pair(stride, "stride"), (top, left), pair(dilation, "dilation"))


@dialect.kernel(op.conv2d, plevel=LIBRARY)
def conv2d(x, w, stride, padding, dilation, groups, layout, kernel_layout, out_layout):
    x = x.permute(permutation(layout, "NCHW", "layout"))
    w = w.permute(permutation(kernel_layout, "OIHW", "kernel_layout"))
    x, window = _geometry(x, stride, padding, dilation)
    y = F.conv2d(x, w, None, *window, groups)
    return y.permute(permutation("NCHW", out_layout, "out_layout")).contiguous()


def _backward(dy, x, w, window, groups, mask):
    """Return one gradient; of x or w, whichever it is the gradient of, only the shape matters."""
    arguments = (dy, x, w, None, *window, False, (0, 0), groups, mask)
    return torch.ops.aten.convolution_backward(*arguments)[mask.index(True)]


@dialect.kernel(op.conv2d_dx, plevel=LIBRARY)
def conv2d_dx(x_or_w, dy, shape, stride, padding, dilation, groups):
    padded, window = _geometry(dy.new_empty(1).expand(shape), stride, padding, dilation)
    dx = _backward(dy, padded, x_or_w, window, groups, [True, False, False])
    top, left, _, _ = pads(padding)
    if tuple(dx.shape) != shape:
        dx = dx[:, :, top : top + shape[2], left : left + shape[3]]
    return dx.contiguous()


@dialect.kernel(op.conv2d_dw, plevel=LIBRARY)
def conv2d_dw(x_or_w, dy, shape, stride, padding, dilation, groups):
    padded, window = _geometry(x_or_w, stride, padding, dilation)
    weight = dy.new_empty(1).expand(shape)
    return _backward(dy, padded, weight, window, groups, [False, True, False]).contiguous()
