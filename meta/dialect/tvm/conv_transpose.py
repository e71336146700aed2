"""Transposed convolutions in tensor expressions, by those of `conv.py` with the parts exchanged.

A kernel in IOHW order is the OIHW kernel of the convolution that is transposed.
"""

from tvm import te

from meta import op
from meta.dialect.tvm import conv
from meta.dialect.tvm.compute import OUT_ELEMWISE_FUSABLE, compute
from meta.op.core.window import permutation


def _ordered(x, layout, to):
    """Return x, of ``layout``, in the order ``to``."""
    if layout == to:
        return x
    element, shape = conv.in_order(x, layout, to)
    return te.compute(shape, element, name="ordered")


@compute(op.conv2d_transpose, OUT_ELEMWISE_FUSABLE)
def conv2d_transpose(
    x, w, stride, padding, dilation, groups, layout, kernel_layout, out_layout, out
):
    x, w = _ordered(x, layout, "NCHW"), _ordered(w, kernel_layout, "IOHW")
    shape = tuple(int(out.shape[a]) for a in permutation(out_layout, "NCHW", "out_layout"))
    y = conv.by_input(w, x, shape, stride, padding, dilation, groups)
    return _ordered(y, "NCHW", out_layout)


@compute(op.conv2d_transpose_dx, OUT_ELEMWISE_FUSABLE)
def conv2d_transpose_dx(x_or_w, dy, stride, padding, dilation, groups, out):
    orders = ("NCHW", "OIHW", "NCHW")
    return conv.forward(dy, x_or_w, stride, padding, dilation, groups, *orders, out)


@compute(op.conv2d_transpose_dw, OUT_ELEMWISE_FUSABLE)
def conv2d_transpose_dw(x_or_w, dy, shape, stride, padding, dilation, groups):
    return conv.by_kernel(dy, x_or_w, shape, stride, padding, dilation, groups)
