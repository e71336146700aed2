"""Convolutions over one, two and three axes, and transposed ones, which are `conv2d_dx` as forward
operators. Their types are made in `meta/op/core/convolution.py`."""

from typing import Any

from meta.op.core import Ints, Tensor, op
from meta.op.core.convolution import Convolution, convolved, transposed
from meta.op.core.window import KERNEL, TRANSPOSED_KERNEL

TYPES_2D = Convolution(convolved, KERNEL[2])


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
    return TYPES_2D.forward(x, w, *options)


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
    return TYPES_2D.by_input(x_or_w, y, dy, shape, *options)


@op(schema=conv2d_dx, enough=((),))
def conv2d_dw(*arguments: Any) -> Tensor:
    """Gradient of `conv2d` with respect to w.

    x_or_w: the input. y: the forward result; not used, may be None. dy: gradient of the result.
    shape: of w, in ``kernel_layout``. The rest as in the forward call. Result: ``shape``, of dy's
    dtype.

    Raises TypeInferError if ``dy`` is not of the shape that the forward call gives.
    """
    return TYPES_2D.by_kernel(*arguments)


TYPES_1D = Convolution(convolved, KERNEL[1])


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
    return TYPES_1D.forward(x, w, *options)


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
    return TYPES_1D.by_input(x_or_w, y, dy, shape, *options)


@op(schema=conv1d_dx, enough=((),))
def conv1d_dw(*arguments: Any) -> Tensor:
    """Gradient of `conv1d` with respect to w.

    Arguments and result are as in `conv2d_dw`.
    """
    return TYPES_1D.by_kernel(*arguments)


TYPES_3D = Convolution(convolved, KERNEL[3])


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
    return TYPES_3D.forward(x, w, *options)


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
    return TYPES_3D.by_input(x_or_w, y, dy, shape, *options)


@op(schema=conv3d_dx, enough=((),))
def conv3d_dw(*arguments: Any) -> Tensor:
    """Gradient of `conv3d` with respect to w.

    Arguments and result are as in `conv2d_dw`.
    """
    return TYPES_3D.by_kernel(*arguments)


TRANSPOSED_2D = Convolution(transposed, TRANSPOSED_KERNEL[2])


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
    return TRANSPOSED_2D.forward(x, w, *window, layout, kernel_layout, out_layout)


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
    return TRANSPOSED_2D.by_input(x_or_w, y, dy, shape, *options)


@op(schema=conv2d_transpose_dx, enough=((),))
def conv2d_transpose_dw(*arguments: Any) -> Tensor:
    """Gradient of `conv2d_transpose` with respect to w.

    x_or_w: the input. y: the forward result; not used, may be None. dy: gradient of the result.
    shape: of w, in ``kernel_layout``. The rest as in the forward call. Result: ``shape``, of dy's
    dtype.

    Raises TypeInferError if ``dy`` is not of the shape that the forward call gives.
    """
    return TRANSPOSED_2D.by_kernel(*arguments)


TRANSPOSED_1D = Convolution(transposed, TRANSPOSED_KERNEL[1])


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
    return TRANSPOSED_1D.forward(x, w, *window, layout, kernel_layout, out_layout)


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
    return TRANSPOSED_1D.by_input(x_or_w, y, dy, shape, *options)


@op(schema=conv1d_transpose_dx, enough=((),))
def conv1d_transpose_dw(*arguments: Any) -> Tensor:
    """Gradient of `conv1d_transpose` with respect to w.

    Arguments and result are as in `conv2d_transpose_dw`.
    """
    return TRANSPOSED_1D.by_kernel(*arguments)


TRANSPOSED_3D = Convolution(transposed, TRANSPOSED_KERNEL[3])


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
    return TRANSPOSED_3D.forward(x, w, *window, layout, kernel_layout, out_layout)


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
    return TRANSPOSED_3D.by_input(x_or_w, y, dy, shape, *options)


@op(schema=conv3d_transpose_dx, enough=((),))
def conv3d_transpose_dw(*arguments: Any) -> Tensor:
    """Gradient of `conv3d_transpose` with respect to w.

    Arguments and result are as in `conv2d_transpose_dw`.
    """
    return TRANSPOSED_3D.by_kernel(*arguments)
