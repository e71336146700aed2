"""Pooling over one, two and three spatial axes. The types are made in `meta/op/core/pooling.py`;
what a call is, in `meta/op/pool_calls.py`.
"""

from typing import Any

from meta.op.core import Ints, Tensor, op
from meta.op.core.op import ComposedOp
from meta.op.core.pooling import adaptive_pool_type, pool_gradient_type, pool_type
from meta.op.core.window import DATA, fill_docstring

POOLING: dict[str, ComposedOp] = {}
"""Operators by name."""


def _pooling(n: int) -> None:
    data = DATA[n]

    @op(name=f"max_pool{n}d", composed=True)
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

    @op(name=f"adaptive_max_pool{n}d", composed=True)
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

    @op(name=f"max_pool{n}d_dx", options=max_pool)
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

    @op(name=f"adaptive_max_pool{n}d_dx", options=adaptive_max_pool)
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
