"""Convolution over three axes, written with `meta/op/core/convolution.py` as `conv.py` is."""

from typing import Any

from meta.op.core import Ints, Tensor, op
from meta.op.core.convolution import Convolution, convolved
from meta.op.core.window import KERNEL

TYPES = Convolution(convolved, KERNEL[3])


@op
def conv3d(
    x: Tensor,
    w: Tensor,
    stride: Ints = 1,
    padding: Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
    layout: str = "NCDHW",
    kernel_layout: str = "OIDHW",
    out_layout: str = "NCDHW",
) -> Tensor:
    """3-d cross-correlation: `conv2d` with a depth, the spatial axis D before H and W.

    x: numbers [N, C, D, H, W]. w: same dtype, [O, C/groups, KD, KH, KW]. stride, dilation:
    int or one int per axis. padding: int, (depth, vertical, horizontal), or (front, top, left,
    back, bottom, right). layout, kernel_layout, out_layout: the letters of NCDHW, OIDHW and NCDHW
    in the order in which x, w and the result have them.
    Result: [N, O, OD, OH, OW] of x's dtype, OD = (D + front + back - dd*(KD-1) - 1) // sd + 1.
    Half precision accumulates in float32; integers wrap around, and have no gradient.

    Raises TypeInferError if shapes, dtypes or groups do not match, or no window fits.
    """
    options = (stride, padding, dilation, groups, layout, kernel_layout, out_layout)
    return TYPES.forward(x, w, *options)


@op(enough=((),))
def conv3d_dx(
    x_or_w: Tensor,
    y: Tensor | None,
    dy: Tensor,
    shape: tuple[int, ...],
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
    layout: str = "NCDHW",
    kernel_layout: str = "OIDHW",
    out_layout: str = "NCDHW",
) -> Tensor:
    """Gradient of `conv3d` with respect to x.

    Arguments and result are as in `conv2d_dx`.
    """
    options = (stride, padding, dilation, groups, layout, kernel_layout, out_layout)
    return TYPES.by_input(x_or_w, y, dy, shape, *options)


@op(schema=conv3d_dx, enough=((),))
def conv3d_dw(*arguments: Any) -> Tensor:
    """Gradient of `conv3d` with respect to w.

    Arguments and result are as in `conv2d_dw`.
    """
    return TYPES.by_kernel(*arguments)
