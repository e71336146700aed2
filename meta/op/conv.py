"""Convolution over two axes. What it shares with `conv_1d.py`, `conv_3d.py` and `conv_transpose.py`
is in `meta/op/core/convolution.py`.
"""

from typing import Any

from meta.op.core import Ints, Tensor, op
from meta.op.core.convolution import Convolution, convolved
from meta.op.core.window import KERNEL

TYPES = Convolution(convolved, KERNEL[2])


@op
def conv2d(
    x: Tensor,
    w: Tensor,
    stride: Ints = 1,
    padding: Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
    layout: str = "NCHW",
    kernel_layout: str = "OIHW",
    out_layout: str = "NCHW",
) -> Tensor:
    """2-d cross-correlation:

    ``y[n, o, i, j] = sum(x[n, c, i*sh - top + p*dh, j*sw - left + q*dw] * w[o, c, p, q])`` over
    the input channels c of o's group and the taps (p, q); x is 0 outside.

    x: numbers [N, C, H, W]. w: same dtype, [O, C/groups, KH, KW].
    stride, dilation: int or (vertical, horizontal). padding: int, (vertical, horizontal) or
    (top, left, bottom, right). layout, kernel_layout, out_layout: the letters of NCHW, OIHW and
    NCHW in the order in which x, w and the result have them.
    Result: [N, O, OH, OW] of x's dtype, with OH = (H + top + bottom - dh*(KH-1) - 1) // sh + 1.
    Half precision accumulates in float32; integers wrap around, and have no gradient.

    Raises TypeInferError if shapes, dtypes or groups do not match, or no window fits.
    """
    options = (stride, padding, dilation, groups, layout, kernel_layout, out_layout)
    return TYPES.forward(x, w, *options)


@op(enough=((),))
def conv2d_dx(
    x_or_w: Tensor,
    y: Tensor | None,
    dy: Tensor,
    shape: tuple[int, ...],
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
    layout: str = "NCHW",
    kernel_layout: str = "OIHW",
    out_layout: str = "NCHW",
) -> Tensor:
    """Gradient of `conv2d` with respect to x, a transposed convolution of ``dy``.

    x_or_w: the kernel. y: the forward result; not used, may be None. dy: gradient of the result.
    shape: of x, in ``layout``. The rest as in the forward call. Result: ``shape``, of dy's dtype.

    Raises TypeInferError if ``dy`` is not of the shape that the forward call gives.
    """
    options = (stride, padding, dilation, groups, layout, kernel_layout, out_layout)
    return TYPES.by_input(x_or_w, y, dy, shape, *options)


@op(schema=conv2d_dx, enough=((),))
def conv2d_dw(*arguments: Any) -> Tensor:
    """Gradient of `conv2d` with respect to w.

    x_or_w: the input. y: the forward result; not used, may be None. dy: gradient of the result.
    shape: of w, in ``kernel_layout``. The rest as in the forward call. Result: ``shape``, of dy's
    dtype.

    Raises TypeInferError if ``dy`` is not of the shape that the forward call gives.
    """
    return TYPES.by_kernel(*arguments)
