"""Convolutions on ATen (oneDNN on the CPU, cuDNN on the GPU). Padding may differ on two sides.

The kernels serve any number of spatial axes; `conv_1d.py` and `conv_3d.py` register them too.
"""

import torch
import torch.nn.functional as F

from meta import op
from meta.dialect import LIBRARY
from meta.dialect.torch import torch as dialect
from meta.op.core.check import pair
from meta.op.core.window import DATA, KERNEL, pads, permutation


def _geometry(x, stride, padding, dilation):
    """Return the input, padded if the sides differ, and convolution's own window arguments."""
    count = x.ndim - 2
    around = pads(padding, count)
    before, after = around[:count], around[count:]
    if before != after:
        sides = zip(reversed(before), reversed(after), strict=True)
        x, before = F.pad(x, [side for both in sides for side in both]), (0,) * count
    return x, (pair(stride, "stride", count), before, pair(dilation, "dilation", count))


def forward(x, w, stride, padding, dilation, groups, layout, kernel_layout, out_layout):
    """Return the convolution of x with w."""
    data, kernel = DATA[x.ndim - 2], KERNEL[x.ndim - 2]
    x = x.permute(permutation(layout, data, "layout"))
    w = w.permute(permutation(kernel_layout, kernel, "kernel_layout"))
    x, window = _geometry(x, stride, padding, dilation)
    y = torch.convolution(x, w, None, *window, False, (0,) * (x.ndim - 2), groups)
    return y.permute(permutation(data, out_layout, "out_layout")).contiguous()


def _backward(dy, x, w, window, groups, mask):
    """Return one gradient; of x or w, whichever it is the gradient of, only the shape matters."""
    arguments = (dy, x, w, None, *window, False, (0,) * (dy.ndim - 2), groups, mask)
    return torch.ops.aten.convolution_backward(*arguments)[mask.index(True)]


def by_input(x_or_w, dy, shape, stride, padding, dilation, groups):
    """Return dx; x_or_w is w."""
    padded, window = _geometry(dy.new_empty(1).expand(shape), stride, padding, dilation)
    dx = _backward(dy, padded, x_or_w, window, groups, [True, False, False])
    if tuple(dx.shape) != shape:
        for axis, before in enumerate(pads(padding, dy.ndim - 2)[: dy.ndim - 2], 2):
            dx = dx.narrow(axis, before, shape[axis])
    return dx.contiguous()


def by_kernel(x_or_w, dy, shape, stride, padding, dilation, groups):
    """Return dw; x_or_w is x."""
    padded, window = _geometry(x_or_w, stride, padding, dilation)
    weight = dy.new_empty(1).expand(shape)
    return _backward(dy, padded, weight, window, groups, [False, True, False]).contiguous()


def convolution(conv, conv_dx, conv_dw):
    """Register the kernels of a convolution and of its two gradients."""
    dialect.kernel(conv, plevel=LIBRARY)(forward)
    dialect.kernel(conv_dx, plevel=LIBRARY)(by_input)
    dialect.kernel(conv_dw, plevel=LIBRARY)(by_kernel)


convolution(op.conv2d, op.conv2d_dx, op.conv2d_dw)
