"""Transposed convolutions on ATen, by the kernels of `conv.py` with the parts exchanged: x and the
result change places, and so do the letters I and O of the kernel.
"""

from meta import op
from meta.dialect import LIBRARY
from meta.dialect.torch import conv
from meta.dialect.torch import torch as dialect
from meta.op.core.window import exchanged


def transposed(conv_transpose, conv_dx, conv_dw):
    """Register the kernels of a transposed convolution and of its two gradients."""

    @dialect.kernel(conv_transpose, plevel=LIBRARY, when=conv.no_integers_on_cuda)
    def forward(x, w, stride, padding, dilation, groups, layout, kernel_layout, out_layout, call):
        window = (stride, padding, dilation, groups)
        layouts = (out_layout, exchanged(kernel_layout), layout)
        return conv.by_input(w, x, call.outputs[0].static_shape, *window, *layouts)

    @dialect.kernel(conv_dx, plevel=LIBRARY)
    def by_input(x_or_w, dy, stride, padding, dilation, groups, layout, kernel_layout, out_layout):
        window = (stride, padding, dilation, groups)
        layouts = (out_layout, exchanged(kernel_layout), layout)
        return conv.forward(dy, x_or_w, *window, *layouts)

    @dialect.kernel(conv_dw, plevel=LIBRARY)
    def by_kernel(
        x_or_w, dy, shape, stride, padding, dilation, groups, layout, kernel_layout, out_layout
    ):
        window = (stride, padding, dilation, groups)
        layouts = (out_layout, exchanged(kernel_layout), layout)
        return conv.by_kernel(dy, x_or_w, shape, *window, *layouts)


transposed(op.conv2d_transpose, op.conv2d_transpose_dx, op.conv2d_transpose_dw)
