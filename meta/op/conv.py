"""Convolutions. Add one here; the window arithmetic is in `meta/op/core/window.py`."""

from meta.ir.types import Dim
from meta.op.core import Ints, Tensor, TensorType, op
from meta.op.core.check import require, require_float, require_ndim
from meta.op.core.window import (
    arranged,
    check_gradient,
    gradient_type,
    permutation,
    window,
)


def _convolved(
    x: tuple[Dim, ...],
    w: tuple[int, ...],
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
) -> tuple[Dim, ...]:
    """Return the NCHW shape of the convolution of an NCHW and an OIHW shape."""
    outputs, inputs = w[:2]
    require(groups >= 1, "groups must be positive", found=groups)
    require(
        not isinstance(x[1], int) or inputs * groups == x[1],
        "the input channels do not match the kernel's",
        expected=f"{inputs} in each of {groups} groups",
        found=f"{x[1]} channels",
    )
    fits = outputs >= 1 and outputs % groups == 0
    require(fits, "the kernels do not fill the groups", found=f"{outputs} in {groups} groups")
    height, width = window(x[2:], w[2:], stride, padding, dilation)
    return (x[0], outputs, height.out, width.out)


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

    x: floating point [N, C, H, W]. w: same dtype, [O, C/groups, KH, KW].
    stride, dilation: int or (vertical, horizontal). padding: int, (vertical, horizontal) or
    (top, left, bottom, right). layout, kernel_layout, out_layout: the letters of NCHW, OIHW and
    NCHW in the order in which x, w and the result have them.
    Result: [N, O, OH, OW] of x's dtype, with OH = (H + top + bottom - dh*(KH-1) - 1) // sh + 1.
    Half precision accumulates in float32.

    Raises TypeInferError if shapes, dtypes or groups do not match, or no window fits.
    """
    for value, name in ((x, "x"), (w, "w")):
        require_ndim(value, 4, name)
        require_float(value, name)
    require(x.dtype == w.dtype, "x and w differ in dtype", found=f"{x.dtype} and {w.dtype}")
    data = tuple(x.shape[i] for i in permutation(layout, "NCHW", "layout"))
    kernel = tuple(w.static_shape[i] for i in permutation(kernel_layout, "OIHW", "kernel_layout"))
    shape = _convolved(data, kernel, stride, padding, dilation, groups)
    return TensorType(arranged(shape, "NCHW", out_layout, "out_layout"), x.dtype)


@op
def conv2d_dx(
    x_or_w: Tensor,
    y: Tensor | None,
    dy: Tensor,
    shape: tuple[int, ...],
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
) -> Tensor:
    """Gradient of `conv2d` with respect to x, a transposed convolution of ``dy``.

    x_or_w: the kernel, OIHW. y: the forward result; not used, may be None. dy: gradient of the
    result, NCHW. shape: of x, NCHW. The rest as in the forward call.
    Result: ``shape``, of dy's dtype.

    Raises TypeInferError if ``dy`` is not of the shape that the forward call gives.
    """
    check_gradient(x_or_w, dy, shape)
    expected = _convolved(shape, x_or_w.static_shape, stride, padding, dilation, groups)
    return gradient_type(dy, expected, shape)


@op(schema=conv2d_dx)
def conv2d_dw(
    x_or_w: Tensor,
    y: Tensor | None,
    dy: Tensor,
    shape: tuple[int, ...],
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
) -> Tensor:
    """Gradient of `conv2d` with respect to w.

    x_or_w: the input, NCHW. y: the forward result; not used, may be None. dy: gradient of the
    result, NCHW. shape: of w, OIHW. The rest as in the forward call.
    Result: ``shape``, of dy's dtype.

    Raises TypeInferError if ``dy`` is not of the shape that the forward call gives.
    """
    check_gradient(x_or_w, dy, shape)
    expected = _convolved(x_or_w.shape, shape, stride, padding, dilation, groups)
    return gradient_type(dy, expected, shape)
