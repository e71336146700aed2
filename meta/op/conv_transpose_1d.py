"""Transposed convolution over one axis, written as `conv_transpose.py` is."""

from typing import Any

from meta.op.core import Ints, Tensor, op
from meta.op.core.convolution import Convolution, transposed
from meta.op.core.window import TRANSPOSED_KERNEL

TYPES = Convolution(transposed, TRANSPOSED_KERNEL[1])


@op
def conv1d_transpose(
    x: Tensor,
    w: Tensor,
    stride: Ints = 1,
    padding: Ints = 0,
    output_padding: Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
    layout: str = "NCW",
    kernel_layout: str = "IOW",
    out_layout: str = "NCW",
) -> Tensor:
    """Transposed 1-d convolution: what `conv1d` with the same window and kernel has as gradient.

    x: numbers [N, I, W]. w: same dtype, [I, O/groups, K]. stride, dilation: int or (int,).
    padding: int or (before, after), cut off the result. output_padding: elements added behind, less
    than the stride. layout, kernel_layout, out_layout: the letters of NCW, IOW and NCW in the order
    in which x, w and the result have them.
    Result: [N, O, OW] of x's dtype, OW = (W-1)*stride - before - after + dilation*(K-1) + 1 +
    output_padding.
    Integers wrap around, and have no gradient.

    Raises TypeInferError if shapes, dtypes or groups do not match.
    """
    window = (stride, padding, output_padding, dilation, groups)
    return TYPES.forward(x, w, *window, layout, kernel_layout, out_layout)


@op(enough=((),))
def conv1d_transpose_dx(
    x_or_w: Tensor,
    y: Tensor | None,
    dy: Tensor,
    shape: tuple[int, ...],
    stride: Ints,
    padding: Ints,
    output_padding: Ints,
    dilation: Ints,
    groups: int,
    layout: str = "NCW",
    kernel_layout: str = "IOW",
    out_layout: str = "NCW",
) -> Tensor:
    """Gradient of `conv1d_transpose` with respect to x.

    Arguments and result are as in `conv2d_transpose_dx`.
    """
    window = (stride, padding, output_padding, dilation, groups)
    options = (*window, layout, kernel_layout, out_layout)
    return TYPES.by_input(x_or_w, y, dy, shape, *options)


@op(schema=conv1d_transpose_dx, enough=((),))
def conv1d_transpose_dw(*arguments: Any) -> Tensor:
    """Gradient of `conv1d_transpose` with respect to w.

    Arguments and result are as in `conv2d_transpose_dw`.
    """
    return TYPES.by_kernel(*arguments)
