"""Transposed convolution: `conv2d_dx` as a forward operator."""

from meta.ir.types import UNKNOWN, Dim
from meta.op.core import Ints, Tensor, TensorType, op
from meta.op.core.check import pair, require, require_float, require_ndim
from meta.op.core.window import (
    arranged,
    check_gradient,
    gradient_type,
    pads,
    permutation,
    window,
)


def transposed_shape(
    x: tuple[Dim, ...],
    w: tuple[int, ...],
    stride: Ints,
    padding: Ints,
    output_padding: Ints,
    dilation: Ints,
    groups: int,
) -> tuple[Dim, ...]:
    """Return the NCHW shape of the transposed convolution of an NCHW and an IOHW shape."""
    require(groups >= 1, "groups must be positive", found=groups)
    fits = not isinstance(x[1], int) or w[0] == x[1]
    require(fits, "the channels of x and w differ", found=f"{x[1]} and {w[0]}")
    require(w[0] % groups == 0, "groups must divide the channels", found=f"{w[0]} % {groups}")
    require(w[1] >= 1, "w has no output channel", found=list(w))
    steps, extra = pair(stride, "stride"), pair(output_padding, "output_padding")
    require(
        all(0 <= e < s for e, s in zip(extra, steps, strict=True)),
        "output_padding does not fit",
        expected=f"not negative, below the stride {stride}",
        found=output_padding,
    )
    around = pads(padding)
    spread = pair(dilation, "dilation")
    sizes: list[Dim] = []
    for i in range(2):
        extent, size = spread[i] * (w[2 + i] - 1) + 1, x[2 + i]
        if not isinstance(size, int):
            sizes.append(UNKNOWN)
            continue
        found = (size - 1) * steps[i] - around[i] - around[2 + i] + extent + extra[i]
        require(found >= 1, "nothing is left inside the padding", found=padding)
        sizes.append(found)
    window(tuple(sizes), w[2:], stride, padding, dilation)
    return (x[0], w[1] * groups, *sizes)


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

    x: floating point [N, I, H, W]. w: same dtype, [I, O/groups, KH, KW]. stride, dilation: int or
    (vertical, horizontal). padding: int, (vertical, horizontal) or (top, left, bottom, right), cut
    off the result. output_padding: rows and columns added below and to the right, less than the
    stride. layout, kernel_layout, out_layout: the letters of NCHW, IOHW and NCHW in the order in
    which x, w and the result have them.
    Result: [N, O, OH, OW] of x's dtype, OH = (H-1)*sh - top - bottom + dh*(KH-1) + 1 + extra rows.

    Raises TypeInferError if shapes, dtypes or groups do not match.
    """
    for value, name in ((x, "x"), (w, "w")):
        require_ndim(value, 4, name)
        require_float(value, name)
    require(x.dtype == w.dtype, "x and w differ in dtype", found=f"{x.dtype} and {w.dtype}")
    data = tuple(x.shape[i] for i in permutation(layout, "NCHW", "layout"))
    kernel = tuple(w.static_shape[i] for i in permutation(kernel_layout, "IOHW", "kernel_layout"))
    shape = transposed_shape(data, kernel, stride, padding, output_padding, dilation, groups)
    return TensorType(arranged(shape, "NCHW", out_layout, "out_layout"), x.dtype)


@op
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
) -> Tensor:
    """Gradient of `conv2d_transpose` with respect to x: the convolution of ``dy`` with the kernel.

    x_or_w: the kernel, IOHW. y: the forward result; not used, may be None. dy: gradient of the
    result, NCHW. shape: of x, NCHW. The rest as in the forward call. Result: ``shape``, dy's dtype.

    Raises TypeInferError if ``dy`` is not of the shape that the forward call gives.
    """
    check_gradient(x_or_w, dy, shape)
    w = x_or_w.static_shape
    expected = transposed_shape(shape, w, stride, padding, output_padding, dilation, groups)
    return gradient_type(dy, expected, shape)


@op(schema=conv2d_transpose_dx)
def conv2d_transpose_dw(
    x_or_w: Tensor,
    y: Tensor | None,
    dy: Tensor,
    shape: tuple[int, ...],
    stride: Ints,
    padding: Ints,
    output_padding: Ints,
    dilation: Ints,
    groups: int,
) -> Tensor:
    """Gradient of `conv2d_transpose` with respect to w.

    x_or_w: the input, NCHW. y: the forward result; not used, may be None. dy: gradient of the
    result, NCHW. shape: of w, IOHW. The rest as in the forward call. Result: ``shape``, dy's dtype.

    Raises TypeInferError if ``dy`` is not of the shape that the forward call gives.
    """
    check_gradient(x_or_w, dy, shape)
    x = x_or_w.shape
    expected = transposed_shape(x, shape, stride, padding, output_padding, dilation, groups)
    return gradient_type(dy, expected, shape)
