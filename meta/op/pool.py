"""Pooling over one, two and three spatial axes. The types are made in `meta/op/core/pooling.py`."""

from typing import Any

from meta.op.core import Ints, Tensor, op
from meta.op.core.pooling import adaptive, adaptive_dx, pooled, pooled_dx


@op
def max_pool2d(
    x: Tensor,
    kernel: Ints,
    stride: Ints,
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    include_pad: bool = True,
    layout: str = "NCHW",
) -> Tensor:
    """Maximum over each window; padding never wins.

    x: floating point [N, C, H, W], or as ``layout`` orders these letters. kernel, stride,
    dilation: int or (vertical, horizontal). padding: int, (vertical, horizontal) or (top, left,
    bottom, right), below the window's extent. ceil_mode: keep a last, incomplete window that
    starts inside the input or the padding before it. include_pad: without meaning here.
    Result: [N, C, OH, OW] in x's layout and dtype, OH = (H + top + bottom - dh*(KH-1) - 1) / sh + 1
    with the quotient rounded down, or up with ceil_mode.

    Raises TypeInferError if no window fits, or one could lie in the padding alone.
    """
    window = (kernel, stride, padding, dilation, ceil_mode, include_pad)
    return pooled(2, x, *window, layout)


@op(schema=max_pool2d)
def avg_pool2d(*arguments: Any) -> Tensor:
    """Mean over each window.

    include_pad: count the zeros of the padding as elements; what a last window of ceil_mode has
    beyond the padding never counts. All else as in `max_pool2d`. Half precision accumulates in
    float32.

    Raises TypeInferError if no window fits, or one could lie in the padding alone.
    """
    return pooled(2, *arguments)


@op
def adaptive_max_pool2d(x: Tensor, shape: Ints, layout: str = "NCHW") -> Tensor:
    """Maximum over ``shape`` regions that cover the input evenly.

    Region i of n along an axis of extent H is [floor(i*H/n), ceil((i+1)*H/n)).
    x: floating point [N, C, H, W], or as ``layout`` orders these letters. shape: OH and OW, or one
    int for both. Result: [N, C, OH, OW] in x's layout and dtype.

    Raises TypeInferError for an empty input axis or an output extent below 1.
    """
    return adaptive(2, x, shape, layout)


@op(schema=adaptive_max_pool2d)
def adaptive_avg_pool2d(x: Tensor, shape: Ints, layout: str = "NCHW") -> Tensor:
    """Mean over ``shape`` regions that cover the input evenly; see `adaptive_max_pool2d`."""
    return adaptive(2, x, shape, layout)


@op
def max_pool2d_dx(
    x: Tensor,
    y: Tensor,
    dy: Tensor,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool,
    include_pad: bool,
    layout: str | None = None,
) -> Tensor:
    """Gradient of `max_pool2d`: dy goes to the first maximum of its window, in row order.

    x, y, dy: argument, result and the result's gradient, of one dtype and all in ``layout``, which
    is NCHW unless given; the rest as in the forward call. Result: x's shape and dtype.
    """
    window = (kernel, stride, padding, dilation, ceil_mode, include_pad)
    return pooled_dx(2, x, y, dy, *window, layout)


@op(schema=max_pool2d_dx)
def avg_pool2d_dx(*arguments: Any) -> Tensor:
    """Gradient of `avg_pool2d`: dy is shared evenly by the elements of its window.

    All as in `max_pool2d_dx`; of x and y only the types matter.
    """
    return pooled_dx(2, *arguments)


@op
def adaptive_max_pool2d_dx(
    x: Tensor, y: Tensor, dy: Tensor, shape: Ints, layout: str | None = None
) -> Tensor:
    """Gradient of `adaptive_max_pool2d`: dy goes to the first maximum of its region, in row order.

    x, y, dy: argument, result and the result's gradient, of one dtype and all in ``layout``, which
    is NCHW unless given. Result: x's shape and dtype.
    """
    return adaptive_dx(2, x, y, dy, shape, layout)


@op(schema=adaptive_max_pool2d_dx)
def adaptive_avg_pool2d_dx(*arguments: Any) -> Tensor:
    """Gradient of `adaptive_avg_pool2d`: dy is shared evenly by the elements of its region.

    All as in `adaptive_max_pool2d_dx`; of x and y only the types matter.
    """
    return adaptive_dx(2, *arguments)


@op
def max_pool1d(
    x: Tensor,
    kernel: Ints,
    stride: Ints,
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    include_pad: bool = True,
    layout: str = "NCW",
) -> Tensor:
    """Maximum over each window; padding never wins.

    x: floating point [N, C, W], or as ``layout`` orders these letters. kernel, stride,
    dilation: int or (int,). padding: int or (before, after), below the window's extent. ceil_mode:
    keep a last, incomplete window that starts inside the input or the padding before it.
    include_pad: without meaning here.
    Result: [N, C, OW] in x's layout and dtype, OW = (W + before + after - dilation*(K-1) - 1) /
    stride + 1 with the quotient rounded down, or up with ceil_mode.

    Raises TypeInferError if no window fits, or one could lie in the padding alone.
    """
    window = (kernel, stride, padding, dilation, ceil_mode, include_pad)
    return pooled(1, x, *window, layout)


@op(schema=max_pool1d)
def avg_pool1d(*arguments: Any) -> Tensor:
    """Mean over each window.

    include_pad: count the zeros of the padding as elements; what a last window of ceil_mode has
    beyond the padding never counts. All else as in `max_pool1d`. Half precision accumulates in
    float32.

    Raises TypeInferError if no window fits, or one could lie in the padding alone.
    """
    return pooled(1, *arguments)


@op
def adaptive_max_pool1d(x: Tensor, shape: Ints, layout: str = "NCW") -> Tensor:
    """Maximum over ``shape`` regions that cover the input evenly.

    Region i of n along an axis of extent W is [floor(i*W/n), ceil((i+1)*W/n)).
    x: floating point [N, C, W], or as ``layout`` orders these letters. shape: OW as an
    int or (int,). Result: [N, C, OW] in x's layout and dtype.

    Raises TypeInferError for an empty input axis or an output extent below 1.
    """
    return adaptive(1, x, shape, layout)


@op(schema=adaptive_max_pool1d)
def adaptive_avg_pool1d(x: Tensor, shape: Ints, layout: str = "NCW") -> Tensor:
    """Mean over ``shape`` regions that cover the input evenly; see `adaptive_max_pool1d`."""
    return adaptive(1, x, shape, layout)


@op(schema=max_pool2d_dx)
def max_pool1d_dx(*arguments: Any) -> Tensor:
    """Gradient of `max_pool1d`: dy goes to the first maximum of its window, in row order.

    x, y, dy: argument, result and the result's gradient, of one dtype and all in ``layout``, which
    is NCW unless given; the rest as in the forward call. Result: x's shape and dtype.
    """
    return pooled_dx(1, *arguments)


@op(schema=max_pool2d_dx)
def avg_pool1d_dx(*arguments: Any) -> Tensor:
    """Gradient of `avg_pool1d`: dy is shared evenly by the elements of its window.

    All as in `max_pool1d_dx`; of x and y only the types matter.
    """
    return pooled_dx(1, *arguments)


@op(schema=adaptive_max_pool2d_dx)
def adaptive_max_pool1d_dx(*arguments: Any) -> Tensor:
    """Gradient of `adaptive_max_pool1d`: dy goes to the first maximum of its region, in row order.

    x, y, dy: argument, result and the result's gradient, of one dtype and all in ``layout``, which
    is NCW unless given. Result: x's shape and dtype.
    """
    return adaptive_dx(1, *arguments)


@op(schema=adaptive_max_pool2d_dx)
def adaptive_avg_pool1d_dx(*arguments: Any) -> Tensor:
    """Gradient of `adaptive_avg_pool1d`: dy is shared evenly by the elements of its region.

    All as in `adaptive_max_pool1d_dx`; of x and y only the types matter.
    """
    return adaptive_dx(1, *arguments)


@op
def max_pool3d(
    x: Tensor,
    kernel: Ints,
    stride: Ints,
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    include_pad: bool = True,
    layout: str = "NCDHW",
) -> Tensor:
    """Maximum over each window; padding never wins.

    x: floating point [N, C, D, H, W], or as ``layout`` orders these letters. kernel,
    stride, dilation: int or one int per axis. padding: int, (depth, vertical, horizontal) or
    (front, top, left, back, bottom, right), below the window's extent. ceil_mode: keep a last,
    incomplete window that starts inside the input or the padding before it. include_pad: without
    meaning here.
    Result: [N, C, OD, OH, OW] in x's layout and dtype, OD = (D + front + back - dd*(KD-1) - 1) / sd
    + 1 with the quotient rounded down, or up with ceil_mode.

    Raises TypeInferError if no window fits, or one could lie in the padding alone.
    """
    window = (kernel, stride, padding, dilation, ceil_mode, include_pad)
    return pooled(3, x, *window, layout)


@op(schema=max_pool3d)
def avg_pool3d(*arguments: Any) -> Tensor:
    """Mean over each window.

    include_pad: count the zeros of the padding as elements; what a last window of ceil_mode has
    beyond the padding never counts. All else as in `max_pool3d`. Half precision accumulates in
    float32.

    Raises TypeInferError if no window fits, or one could lie in the padding alone.
    """
    return pooled(3, *arguments)


@op
def adaptive_max_pool3d(x: Tensor, shape: Ints, layout: str = "NCDHW") -> Tensor:
    """Maximum over ``shape`` regions that cover the input evenly.

    Region i of n along an axis of extent H is [floor(i*H/n), ceil((i+1)*H/n)).
    x: floating point [N, C, D, H, W], or as ``layout`` orders these letters. shape: OD, OH
    and OW, or one int for all. Result: [N, C, OD, OH, OW] in x's layout and dtype.

    Raises TypeInferError for an empty input axis or an output extent below 1.
    """
    return adaptive(3, x, shape, layout)


@op(schema=adaptive_max_pool3d)
def adaptive_avg_pool3d(x: Tensor, shape: Ints, layout: str = "NCDHW") -> Tensor:
    """Mean over ``shape`` regions that cover the input evenly; see `adaptive_max_pool3d`."""
    return adaptive(3, x, shape, layout)


@op(schema=max_pool2d_dx)
def max_pool3d_dx(*arguments: Any) -> Tensor:
    """Gradient of `max_pool3d`: dy goes to the first maximum of its window, in row order.

    x, y, dy: argument, result and the result's gradient, of one dtype and all in ``layout``, which
    is NCDHW unless given; the rest as in the forward call. Result: x's shape and dtype.
    """
    return pooled_dx(3, *arguments)


@op(schema=max_pool2d_dx)
def avg_pool3d_dx(*arguments: Any) -> Tensor:
    """Gradient of `avg_pool3d`: dy is shared evenly by the elements of its window.

    All as in `max_pool3d_dx`; of x and y only the types matter.
    """
    return pooled_dx(3, *arguments)


@op(schema=adaptive_max_pool2d_dx)
def adaptive_max_pool3d_dx(*arguments: Any) -> Tensor:
    """Gradient of `adaptive_max_pool3d`: dy goes to the first maximum of its region, in row order.

    x, y, dy: argument, result and the result's gradient, of one dtype and all in ``layout``, which
    is NCDHW unless given. Result: x's shape and dtype.
    """
    return adaptive_dx(3, *arguments)


@op(schema=adaptive_max_pool2d_dx)
def adaptive_avg_pool3d_dx(*arguments: Any) -> Tensor:
    """Gradient of `adaptive_avg_pool3d`: dy is shared evenly by the elements of its region.

    All as in `adaptive_max_pool3d_dx`; of x and y only the types matter.
    """
    return adaptive_dx(3, *arguments)
