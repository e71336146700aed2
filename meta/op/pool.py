"""Pooling over the two spatial axes. Add one here; window arithmetic: `meta/op/core/window.py`."""

from meta.ir.types import Dim
from meta.op.core import Ints, Tensor, TensorType, op
from meta.op.core.check import pair, require, require_float, require_ndim
from meta.op.core.window import arranged, permutation, window


def _shape(x: TensorType, layout: str) -> tuple[Dim, ...]:
    """Return x's shape in NCHW order."""
    require_ndim(x, 4, "x")
    require_float(x, "x")
    shape = tuple(x.shape[i] for i in permutation(layout, "NCHW", "layout"))
    require(shape[1] != 0, "x has no channel", found=str(x))
    return shape


def _pooled(
    x: TensorType,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool,
    layout: str,
) -> TensorType:
    shape = _shape(x, layout)
    axes = window(shape[2:], kernel, stride, padding, dilation, ceil_mode)
    for axis in axes:
        require(
            max(axis.before, axis.after) < axis.extent,
            "a window could lie in the padding alone",
            expected=f"padding below the window's extent {axis.extent}",
            found=padding,
        )
    result = (*shape[:2], axes[0].out, axes[1].out)
    return TensorType(arranged(result, "NCHW", layout, "layout"), x.dtype)


def _gradient(x: TensorType, y: TensorType, dy: TensorType, expected: TensorType) -> TensorType:
    """Return x's type, after checking that y and dy are of the type that the forward call gives."""
    for value, name in ((y, "y"), (dy, "dy")):
        fits = value == expected or not (value.is_static and expected.is_static)
        require(fits, f"{name} is not of the forward result's type", expected=expected, found=value)
    return x


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
    return _pooled(x, kernel, stride, padding, dilation, ceil_mode, layout)


@op(schema=max_pool2d)
def avg_pool2d(
    x: Tensor,
    kernel: Ints,
    stride: Ints,
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    include_pad: bool = True,
    layout: str = "NCHW",
) -> Tensor:
    """Mean over each window.

    include_pad: count the zeros of the padding as elements; what a last window of ceil_mode has
    beyond the padding never counts. All else as in `max_pool2d`. Half precision accumulates in
    float32.

    Raises TypeInferError if no window fits, or one could lie in the padding alone.
    """
    return _pooled(x, kernel, stride, padding, dilation, ceil_mode, layout)


def _adaptive(x: TensorType, shape: Ints, layout: str) -> TensorType:
    sizes, out = _shape(x, layout), pair(shape, "shape")
    require(min(out) >= 1, "shape must be positive", found=shape)
    require(0 not in sizes[2:], "there is nothing to pool", found=str(x))
    return TensorType(arranged((*sizes[:2], *out), "NCHW", layout, "layout"), x.dtype)


@op
def adaptive_max_pool2d(x: Tensor, shape: Ints, layout: str = "NCHW") -> Tensor:
    """Maximum over ``shape`` regions that cover the input evenly.

    Region i of n along an axis of extent H is [floor(i*H/n), ceil((i+1)*H/n)).
    x: floating point [N, C, H, W], or as ``layout`` orders these letters. shape: OH and OW, or one
    int for both. Result: [N, C, OH, OW] in x's layout and dtype.

    Raises TypeInferError for an empty input axis or an output extent below 1.
    """
    return _adaptive(x, shape, layout)


@op(schema=adaptive_max_pool2d)
def adaptive_avg_pool2d(x: Tensor, shape: Ints, layout: str = "NCHW") -> Tensor:
    """Mean over ``shape`` regions that cover the input evenly; see `adaptive_max_pool2d`."""
    return _adaptive(x, shape, layout)


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
) -> Tensor:
    """Gradient of `max_pool2d`: dy goes to the first maximum of its window, in row order.

    x, y, dy: argument, result and the result's gradient, all NCHW and of one dtype; the rest as in
    the forward call. Result: x's shape and dtype.
    """
    return _gradient(x, y, dy, _pooled(x, kernel, stride, padding, dilation, ceil_mode, "NCHW"))


@op(schema=max_pool2d_dx)
def avg_pool2d_dx(
    x: Tensor,
    y: Tensor,
    dy: Tensor,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool,
    include_pad: bool,
) -> Tensor:
    """Gradient of `avg_pool2d`: dy is shared evenly by the elements of its window.

    x, y, dy: argument, result and the result's gradient, all NCHW and of one dtype (of x and y only
    the types matter); the rest as in the forward call. Result: x's shape and dtype.
    """
    return _gradient(x, y, dy, _pooled(x, kernel, stride, padding, dilation, ceil_mode, "NCHW"))


@op
def adaptive_max_pool2d_dx(x: Tensor, y: Tensor, dy: Tensor, shape: Ints) -> Tensor:
    """Gradient of `adaptive_max_pool2d`: dy goes to the first maximum of its region, in row order.

    x, y, dy: argument, result and the result's gradient, all NCHW and of one dtype.
    Result: x's shape and dtype.
    """
    return _gradient(x, y, dy, _adaptive(x, shape, "NCHW"))


@op(schema=adaptive_max_pool2d_dx)
def adaptive_avg_pool2d_dx(x: Tensor, y: Tensor, dy: Tensor, shape: Ints) -> Tensor:
    """Gradient of `adaptive_avg_pool2d`: dy is shared evenly by the elements of its region.

    x, y, dy: argument, result and the result's gradient, all NCHW and of one dtype (of x and y only
    the types matter). Result: x's shape and dtype.
    """
    return _gradient(x, y, dy, _adaptive(x, shape, "NCHW"))
