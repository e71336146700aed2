"""Transposed convolutions in tensor expressions, by those of `conv.py` with the parts exchanged: x
and the result change places, and so do the letters I and O of the kernel.
"""

from meta import op
from meta.dialect.tvm import conv
from meta.dialect.tvm.compute import OUT_ELEMWISE_FUSABLE, compute
from meta.op.core.window import exchanged


def transposed(conv_transpose, conv_dx, conv_dw):
    """Register the functions of a transposed convolution and of its two gradients."""

    @compute(conv_transpose, OUT_ELEMWISE_FUSABLE)
    def forward(x, w, stride, padding, dilation, groups, layout, kernel_layout, out_layout, out):
        window = (stride, padding, dilation, groups)
        layouts = (out_layout, exchanged(kernel_layout), layout)
        return conv.by_input(w, x, out.static_shape, *window, *layouts)

    @compute(conv_dx, OUT_ELEMWISE_FUSABLE)
    def by_input(
        x_or_w, dy, stride, padding, dilation, groups, layout, kernel_layout, out_layout, out
    ):
        window = (stride, padding, dilation, groups)
        layouts = (out_layout, exchanged(kernel_layout), layout)
        return conv.forward(dy, x_or_w, *window, *layouts, out)

    @compute(conv_dw, OUT_ELEMWISE_FUSABLE)
    def by_kernel(
        x_or_w, dy, shape, stride, padding, dilation, groups, layout, kernel_layout, out_layout
    ):
        window = (stride, padding, dilation, groups)
        layouts = (out_layout, exchanged(kernel_layout), layout)
        return conv.by_kernel(dy, x_or_w, shape, *window, *layouts)


transposed(op.conv2d_transpose, op.conv2d_transpose_dx, op.conv2d_transpose_dw)
