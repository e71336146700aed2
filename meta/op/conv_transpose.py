"""Transposed convolution over two axes: `conv2d_dx` as a forward operator. The types are made in
`meta/op/core/convolution.py`.
"""

from typing import Any

from meta.op.core import Ints, Tensor, op
from meta.op.core.convolution import Convolution, transposed
from meta.op.core.window import TRANSPOSED_KERNEL

TYPES = Convolution(transposed, TRANSPOSED_KERNEL[2])


@op
def conv2d_transpose(
    x: Tensor,
    w: Tensor,
    stride: Ints = 1,
    padding: Ints = 0,
    output_padding: Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
    layout: str = "NCHW",
    kernel_layout: str = "IOHW",
    out_layout: str = "NCHW",
) -> Tensor:
    """Transposed 2-d convolution: what `conv2d` with the same window and kernel has as gradient.

    x: numbers [N, I, H, W]. w: same dtype, [I, O/groups, KH, KW]. stride, dilation: int or
    (vertical, horizontal). padding: int, (vertical, horizontal) or (top, left, bottom, right), cut
    off the result. output_padding: rows and columns added below and to the right, less than the
    stride. layout, kernel_layout, out_layout: the letters of NCHW, IOHW and NCHW in the order in
    which x, w and the result have them.
    Result: [N, O, OH, OW] of x's dtype, OH = (H-1)*sh - top - bottom + dh*(KH-1) + 1 + extra rows.
    Integers wrap around, and have no gradient.

    Raises TypeInferError if shapes, dtypes or groups do not match.
    """
    window = (stride, padding, output_padding, dilation, groups)
    return TYPES.forward(x, w, *window, layout, kernel_layout, out_layout)


@op(enough=((),))
def conv2d_transpose_dx(
    x_or_w: Tensor,
    y: Tensor | None,
    dy: Tensor,
    shape: tuple[int, ...],
    stride: Ints,
    padding: Ints,
    output_padding: Ints,
    dilation: Ints,
    groups: int,
    layout: str = "NCHW",
    kernel_layout: str = "IOHW",
    out_layout: str = "NCHW",
) -> Tensor:
    """Gradient of `conv2d_transpose` with respect to x: dy convolved with the kernel.

    x_or_w: the kernel. y: the forward result; not used, may be None. dy: gradient of the result.
    shape: of x, in ``layout``. The rest as in the forward call. Result: ``shape``, of dy's dtype.

    Raises TypeInferError if ``dy`` is not of the shape that the forward call gives.
    """
    window = (stride, padding, output_padding, dilation, groups)
    options = (*window, layout, kernel_layout, out_layout)
    return TYPES.by_input(x_or_w, y, dy, shape, *options)


@op(schema=conv2d_transpose_dx, enough=((),))
def conv2d_transpose_dw(*arguments: Any) -> Tensor:
    """Gradient of `conv2d_transpose` with respect to w.

    x_or_w: the input. y: the forward result; not used, may be None. dy: gradient of the result.
    shape: of w, in ``kernel_layout``. The rest as in the forward call. Result: ``shape``, of dy's
    dtype.

    Raises TypeInferError if ``dy`` is not of the shape that the forward call gives.
    """
    return TYPES.by_kernel(*arguments)
