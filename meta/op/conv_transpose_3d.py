"""Transposed convolution over three axes, written as `conv_transpose.py` is."""

from typing import Any

from meta.op.core import Ints, Tensor, op
from meta.op.core.convolution import Convolution, transposed
from meta.op.core.window import TRANSPOSED_KERNEL

TYPES = Convolution(transposed, TRANSPOSED_KERNEL[3])


@op
def conv3d_transpose(
    x: Tensor,
    w: Tensor,
    stride: Ints = 1,
    padding: Ints = 0,
    output_padding: Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
    layout: str = "NCDHW",
    kernel_layout: str = "IODHW",
    out_layout: str = "NCDHW",
) -> Tensor:
    """Transposed 3-d convolution: `conv2d_transpose` with a depth, the spatial axis D before H
    and W.

    x: numbers [N, I, D, H, W]. w: same dtype, [I, O/groups, KD, KH, KW]. stride, dilation:
    int or one int per axis. padding: int, (depth, vertical, horizontal), or (front, top, left,
    back, bottom, right), cut off the result. output_padding: int or one int per axis, added at the
    end of the axis, less than the stride. layout, kernel_layout, out_layout: the letters of NCDHW,
    IODHW and NCDHW in the order in which x, w and the result have them.
    Result: [N, O, OD, OH, OW] of x's dtype, OD = (D-1)*sd - front - back + dd*(KD-1) + 1 + extra.
    Integers wrap around, and have no gradient.

    Raises TypeInferError if shapes, dtypes or groups do not match.
    """
    window = (stride, padding, output_padding, dilation, groups)
    return TYPES.forward(x, w, *window, layout, kernel_layout, out_layout)


@op(enough=((),))
def conv3d_transpose_dx(
    x_or_w: Tensor,
    y: Tensor | None,
    dy: Tensor,
    shape: tuple[int, ...],
    stride: Ints,
    padding: Ints,
    output_padding: Ints,
    dilation: Ints,
    groups: int,
    layout: str = "NCDHW",
    kernel_layout: str = "IODHW",
    out_layout: str = "NCDHW",
) -> Tensor:
    """Gradient of `conv3d_transpose` with respect to x.

    Arguments and result are as in `conv2d_transpose_dx`.
    """
    window = (stride, padding, output_padding, dilation, groups)
    options = (*window, layout, kernel_layout, out_layout)
    return TYPES.by_input(x_or_w, y, dy, shape, *options)


@op(schema=conv3d_transpose_dx, enough=((),))
def conv3d_transpose_dw(*arguments: Any) -> Tensor:
    """Gradient of `conv3d_transpose` with respect to w.

    Arguments and result are as in `conv2d_transpose_dw`.
    """
    return TYPES.by_kernel(*arguments)
