"""What pooling over any number of spatial axes gives: the types behind `meta/op/pool*.py`."""

from meta.ir.types import Dim, TensorType
from meta.op.core.check import pair, require, require_float, require_like, require_ndim
from meta.op.core.schema import Ints
from meta.op.core.window import DATA, Taps, arrange_shape, layout_permutation, window


def _shape(count: int, x: TensorType, layout: str) -> tuple[Dim, ...]:
    """Return x's shape in the order of `DATA`."""
    require_ndim(x, count + 2, "x")
    require_float(x, "x")
    shape = tuple(x.shape[i] for i in layout_permutation(layout, DATA[count], "layout"))
    return shape


def _windows_meet_input(axis: Taps) -> bool:
    """Whether every window has a tap inside the input, given that none lies beside it.

    The distance of two taps has to be larger than the input for them to lie on either side.
    """
    size, out = axis.size, axis.out
    if not isinstance(size, int) or not isinstance(out, int) or axis.dilation <= size:
        return True
    for start in range(-axis.before, out * axis.stride - axis.before, axis.stride):
        first = max(0, -(start // axis.dilation))  # the first tap that is not before the input
        if first >= axis.kernel or start + first * axis.dilation >= size:
            return False
    return True


def pool_type(
    count: int,
    x: TensorType,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool,
    include_pad: bool,
    layout: str,
) -> TensorType:
    """Return the type of x pooled over ``count`` spatial axes. include_pad: without meaning here.

    Raises TypeInferError if no window fits, or one could lie in the padding alone.
    """
    shape = _shape(count, x, layout)
    require(shape[1] != 0, "x has no channel", found=str(x))
    axes = window(shape[2:], kernel, stride, padding, dilation, ceil_mode)
    for axis in axes:
        fits = max(axis.before, axis.after) < axis.extent
        expected = f"padding below the window's extent {axis.extent}"
        require(fits, "a window could lie in the padding alone", expected=expected, found=padding)
        require(
            _windows_meet_input(axis),
            "a window has no element of the input",
            expected=f"a tap of each within {axis.size} elements",
            found=f"dilation {axis.dilation} and padding {axis.before}, {axis.after}",
        )
    result = (*shape[:2], *(axis.out for axis in axes))
    return TensorType(arrange_shape(result, DATA[count], layout, "layout"), x.dtype)


def pool_gradient_type(
    x: TensorType, y: TensorType, dy: TensorType, expected: TensorType
) -> TensorType:
    """Return x's type, after checking that y and dy are of the type that the forward call gives."""
    for value, name in ((y, "y"), (dy, "dy")):
        require_like(value, expected, f"{name} is not of the forward result's type")
    return x


def adaptive_pool_type(count: int, x: TensorType, shape: Ints, layout: str) -> TensorType:
    """Return the type of x pooled to ``shape``; an error for elements of nothing."""
    sizes, out = _shape(count, x, layout), pair(shape, "shape", count)
    require(min(out) >= 0, "shape is negative", found=shape)
    result = (*sizes[:2], *out)
    require(0 in result or 0 not in sizes[2:], "there is nothing to pool", found=str(x))
    return TensorType(arrange_shape(result, DATA[count], layout, "layout"), x.dtype)
