"""Transposed convolutions on ATen, by the kernels of `conv.py` with the parts exchanged.

A kernel in IOHW order is the OIHW kernel of the convolution that is transposed.
"""

from meta import op
from meta.dialect import LIBRARY
from meta.dialect.torch import conv
from meta.dialect.torch import torch as dialect
from meta.op.conv_transpose import transposed_shape
from meta.op.core.window import permutation


@dialect.kernel(op.conv2d_transpose, plevel=LIBRARY)
def conv2d_transpose(
    x, w, stride, padding, output_padding, dilation, groups, layout, kernel_layout, out_layout
):
    x = x.permute(permutation(layout, "NCHW", "layout"))
    w = w.permute(permutation(kernel_layout, "IOHW", "kernel_layout"))
    sizes = tuple(x.shape), tuple(w.shape)
    shape = transposed_shape(*sizes, stride, padding, output_padding, dilation, groups)
    y = conv.by_input(w, x, shape, stride, padding, dilation, groups)
    return y.permute(permutation("NCHW", out_layout, "out_layout")).contiguous()


@dialect.kernel(op.conv2d_transpose_dx, plevel=LIBRARY)
def conv2d_transpose_dx(x_or_w, dy, stride, padding, dilation, groups):
    orders = ("NCHW", "OIHW", "NCHW")
    return conv.forward(dy, x_or_w, stride, padding, dilation, groups, *orders)


@dialect.kernel(op.conv2d_transpose_dw, plevel=LIBRARY)
def conv2d_transpose_dw(x_or_w, dy, shape, stride, padding, dilation, groups):
    return conv.by_kernel(dy, x_or_w, shape, stride, padding, dilation, groups)
