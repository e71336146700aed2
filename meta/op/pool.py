"""Pooling over one, two and three spatial axes. What a call is, is in `pool_calls.py`."""

from typing import Any

from meta.ir.types import Dim, TensorType
from meta.op.core import Ints, Tensor, op
from meta.op.core.axes import images
from meta.op.core.check import pair, require, require_float, require_like, require_ndim
from meta.op.core.op import ComposedOp
from meta.op.core.window import (
    DATA,
    Taps,
    arrange_shape,
    fill_docstring,
    layout_permutation,
    window,
)

# What pooling over any number of spatial axes gives: the types of the operators.


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


# The operators.


POOLING: dict[str, ComposedOp] = {}
"""Operators by name."""


def _pooling(n: int) -> None:
    data = DATA[n]

    @op(name=f"max_pool{n}d", composed=True, axes=images("x"))
    @fill_docstring(n)
    def max_pool(
        x: Tensor,
        kernel: Ints,
        stride: Ints,
        padding: Ints = 0,
        dilation: Ints = 1,
        ceil_mode: bool = False,
        include_pad: bool = True,
        layout: str = data,
    ) -> Tensor:
        """Maximum over each window; padding never wins.

        x: floating point [{shape}], or as ``layout`` orders these letters. kernel, stride,
        dilation: {per_axis}. padding: {padding},
        less than the window. ceil_mode: keep a last, incomplete window that starts inside the input
        or the padding before it. include_pad: without meaning here.
        Result: x's layout and dtype; each spatial axis has the size ``(size + padding before and
        after - dilation * (kernel - 1) - 1) / stride + 1``, the quotient rounded down, or up with
        ceil_mode.

        Raises TypeInferError if no window fits, or one could lie in the padding alone.
        """
        return pool_type(n, x, kernel, stride, padding, dilation, ceil_mode, include_pad, layout)

    @op(name=f"avg_pool{n}d", composed=True, like=max_pool)
    @fill_docstring(n)
    def avg_pool() -> None:
        """Mean over each window.

        include_pad: count the zeros of the padding as elements; what a last window of ceil_mode has
        beyond the padding never counts. All else as in `max_pool{n}d`. Half precision accumulates
        in float32.

        Raises TypeInferError if no window fits, or one could lie in the padding alone.
        """

    @op(name=f"adaptive_max_pool{n}d", composed=True, axes=images("x"))
    @fill_docstring(n)
    def adaptive_max_pool(x: Tensor, shape: Ints, layout: str = data) -> Tensor:
        """Maximum over ``shape`` regions that cover the input evenly.

        Region i of n along an axis of size m is [floor(i*m/n), ceil((i+1)*m/n)).
        x: floating point [{shape}], or as ``layout`` orders these letters. shape: the size of each
        spatial axis of the result, {per_axis}. Result: x's layout and dtype.

        Raises TypeInferError for a negative output size, and for an empty axis of the input, unless
        the result is empty, too.
        """
        return adaptive_pool_type(n, x, shape, layout)

    @op(name=f"adaptive_avg_pool{n}d", composed=True, like=adaptive_max_pool)
    @fill_docstring(n)
    def adaptive_avg_pool() -> None:
        """Mean over ``shape`` regions that cover the input evenly; see `adaptive_max_pool{n}d`."""

    POOLING.update({p.name: p for p in (max_pool, avg_pool, adaptive_max_pool, adaptive_avg_pool)})

    @op(name=f"max_pool{n}d_dx", options=max_pool, axes=images("x", "y", "dy"))
    @fill_docstring(n)
    def max_pool_dx(x: Tensor, y: Tensor, dy: Tensor, *options: Any) -> Tensor:
        """Gradient of `max_pool{n}d`: dy goes to the first maximum of its window, in row order.

        x, y, dy: argument, result and the result's gradient, of one dtype and all in ``layout``;
        the rest as in the forward call. Result: x's shape and dtype.
        """
        return pool_gradient_type(x, y, dy, max_pool.type_function(x, *options))

    @op(name=f"avg_pool{n}d_dx", like=max_pool_dx)
    @fill_docstring(n)
    def avg_pool_dx() -> None:
        """Gradient of `avg_pool{n}d`: dy is shared evenly by the elements of its window.

        All as in `max_pool{n}d_dx`; of x and y only the types matter.
        """

    @op(
        name=f"adaptive_max_pool{n}d_dx",
        options=adaptive_max_pool,
        axes=images("x", "y", "dy"),
    )
    @fill_docstring(n)
    def adaptive_max_pool_dx(x: Tensor, y: Tensor, dy: Tensor, *options: Any) -> Tensor:
        """Gradient of `adaptive_max_pool{n}d`: dy goes to the first maximum of its region, in row
        order.

        All as in `max_pool{n}d_dx`.
        """
        return pool_gradient_type(x, y, dy, adaptive_pool_type(n, x, *options))

    @op(name=f"adaptive_avg_pool{n}d_dx", like=adaptive_max_pool_dx)
    @fill_docstring(n)
    def adaptive_avg_pool_dx() -> None:
        """Gradient of `adaptive_avg_pool{n}d`: dy is shared evenly by the elements of its region.

        All as in `max_pool{n}d_dx`; of x and y only the types matter.
        """


for _n in DATA:
    _pooling(_n)
