"""Convolution over one axis, written with `meta/op/core/convolution.py` as `conv.py` is."""

from typing import Any

from meta.op.core import Ints, Tensor, op
from meta.op.core.convolution import Convolution, convolved
from meta.op.core.window import KERNEL

TYPES = Convolution(convolved, KERNEL[1])


@op
def conv1d(
    x: Tensor,
    w: Tensor,
    stride: Ints = 1,
    padding: Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
    layout: str = "NCW",
    kernel_layout: str = "OIW",
    out_layout: str = "NCW",
) -> Tensor:
    """1-d cross-correlation:

    ``y[n, o, i] = sum(x[n, c, i*stride - before + p*dilation] * w[o, c, p])`` over the input
    channels c of o's group and the taps p; x is 0 outside.

    x: numbers [N, C, W]. w: same dtype, [O, C/groups, K]. stride, dilation: int or (int,).
    padding: int or (before, after). layout, kernel_layout, out_layout: the letters of NCW, OIW and
    NCW in the order in which x, w and the result have them.
    Result: [N, O, OW] of x's dtype, OW = (W + before + after - dilation*(K-1) - 1) // stride + 1.
    Half precision accumulates in float32; integers wrap around, and have no gradient.

    Raises TypeInferError if shapes, dtypes or groups do not match, or no window fits.
    """
    options = (stride, padding, dilation, groups, layout, kernel_layout, out_layout)
    return TYPES.forward(x, w, *options)


@op(enough=((),))
def conv1d_dx(
    x_or_w: Tensor,
    y: Tensor | None,
    dy: Tensor,
    shape: tuple[int, ...],
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
    layout: str = "NCW",
    kernel_layout: str = "OIW",
    out_layout: str = "NCW",
) -> Tensor:
    """Gradient of `conv1d` with respect to x.

    Arguments and result are as in `conv2d_dx`.
    """
    options = (stride, padding, dilation, groups, layout, kernel_layout, out_layout)
    return TYPES.by_input(x_or_w, y, dy, shape, *options)


@op(schema=conv1d_dx, enough=((),))
def conv1d_dw(*arguments: Any) -> Tensor:
    """Gradient of `conv1d` with respect to w.

    Arguments and result are as in `conv2d_dw`.
    """
    return TYPES.by_kernel(*arguments)
