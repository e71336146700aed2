"""Convolution over three axes, written with `meta/op/core/window.py` as `conv.py` is."""

from meta.op.core import Ints, Tensor, op
from meta.op.core.window import convolution, convolution_dw, convolution_dx


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

    x: floating point [N, C, D, H, W]. w: same dtype, [O, C/groups, KD, KH, KW]. stride, dilation:
    int or one int per axis. padding: int, (depth, vertical, horizontal), or (front, top, left,
    back, bottom, right). layout, kernel_layout, out_layout: the letters of NCDHW, OIDHW and NCDHW
    in the order in which x, w and the result have them.
    Result: [N, O, OD, OH, OW] of x's dtype, OD = (D + front + back - dd*(KD-1) - 1) // sd + 1.
    Half precision accumulates in float32.

    Raises TypeInferError if shapes, dtypes or groups do not match, or no window fits.
    """
    layouts = (layout, kernel_layout, out_layout)
    return convolution(3, x, w, stride, padding, dilation, groups, layouts)


@op
def conv3d_dx(
    x_or_w: Tensor,
    y: Tensor | None,
    dy: Tensor,
    shape: tuple[int, ...],
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
) -> Tensor:
    """Gradient of `conv3d` with respect to x, a transposed convolution of ``dy``.

    x_or_w: the kernel, OIDHW. y: the forward result; not used, may be None. dy: gradient of the
    result, NCDHW. shape: of x, NCDHW. The rest as in the forward call.
    Result: ``shape``, of dy's dtype.

    Raises TypeInferError if ``dy`` is not of the shape that the forward call gives.
    """
    return convolution_dx(3, x_or_w, dy, shape, stride, padding, dilation, groups)


@op(schema=conv3d_dx)
def conv3d_dw(
    x_or_w: Tensor,
    y: Tensor | None,
    dy: Tensor,
    shape: tuple[int, ...],
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
) -> Tensor:
    """Gradient of `conv3d` with respect to w.

    x_or_w: the input, NCDHW. y: the forward result; not used, may be None. dy: gradient of the
    result, NCDHW. shape: of w, OIDHW. The rest as in the forward call.
    Result: ``shape``, of dy's dtype.

    Raises TypeInferError if ``dy`` is not of the shape that the forward call gives.
    """
    return convolution_dw(3, x_or_w, dy, shape, stride, padding, dilation, groups)
