"""Convolutions over one, two and three spatial axes, and transposed ones, which are the gradient
operators as forward operators. Their types are made in `meta/op/core/convolution.py`.
"""

from typing import Any

from meta.op.core import Ints, Op, Tensor, op
from meta.op.core.convolution import Convolution, convolved, transposed
from meta.op.core.window import DATA, KERNEL, TRANSPOSED_KERNEL, documented


def _gradients(n: int, forward: Op, types: Convolution) -> None:
    name = forward.name

    @op(name=f"{name}_dx", options=forward)
    @documented(n, name)
    def by_input(
        x_or_w: Tensor, y: Tensor | None, dy: Tensor, shape: tuple[int, ...], *options: Any
    ) -> Tensor:
        """Gradient of `{name}` with respect to x.

        x_or_w: the kernel. y: the forward result; not used, may be None. dy: gradient of the
        result. shape: of x, in ``layout``. The rest as in the forward call. Result: ``shape``, of
        dy's dtype.

        Raises TypeInferError if ``dy`` is not of the shape that the forward call gives.
        """
        return types.by_input(x_or_w, y, dy, shape, *options)

    @op(name=f"{name}_dw", schema=by_input)
    @documented(n, name)
    def by_kernel(*arguments: Any) -> Tensor:
        """Gradient of `{name}` with respect to w.

        x_or_w: the input. y: the forward result; not used, may be None. dy: gradient of the
        result. shape: of w, in ``kernel_layout``. The rest as in the forward call. Result:
        ``shape``, of dy's dtype.

        Raises TypeInferError if ``dy`` is not of the shape that the forward call gives.
        """
        return types.by_kernel(*arguments)


def _convolution(n: int) -> None:
    types, data, kernel = Convolution(convolved, KERNEL[n]), DATA[n], KERNEL[n]

    @op(name=f"conv{n}d")
    @documented(n)
    def conv(
        x: Tensor,
        w: Tensor,
        stride: Ints = 1,
        padding: Ints = 0,
        dilation: Ints = 1,
        groups: int = 1,
        layout: str = data,
        kernel_layout: str = kernel,
        out_layout: str = data,
    ) -> Tensor:
        """{n}-d cross-correlation. In two dimensions:

        ``y[n, o, i, j] = sum(x[n, c, i*sh - top + p*dh, j*sw - left + q*dw] * w[o, c, p, q])`` over
        the input channels c of o's group and the taps (p, q); x is 0 outside.

        x: numbers [{shape}]. w: same dtype, the axes {kernel}, with I = C / groups.
        stride, dilation: {per_axis}. padding: {padding}.
        layout, kernel_layout, out_layout: the letters of {data}, {kernel} and {data} in the order
        in which x, w and the result have them.
        Result: [N, O, {axes}] of x's dtype; each spatial axis has the size
        ``(size + padding before and after - dilation * (taps - 1) - 1) // stride + 1``.
        Half precision accumulates in float32; integers wrap around, and have no gradient.

        Raises TypeInferError if shapes, dtypes or groups do not match, or no window fits.
        """
        options = (stride, padding, dilation, groups, layout, kernel_layout, out_layout)
        return types.forward(x, w, *options)

    _gradients(n, conv, types)


def _transposed_convolution(n: int) -> None:
    data, kernel = DATA[n], TRANSPOSED_KERNEL[n]
    types = Convolution(transposed, kernel)

    @op(name=f"conv{n}d_transpose")
    @documented(n)
    def conv_transpose(
        x: Tensor,
        w: Tensor,
        stride: Ints = 1,
        padding: Ints = 0,
        output_padding: Ints = 0,
        dilation: Ints = 1,
        groups: int = 1,
        layout: str = data,
        kernel_layout: str = kernel,
        out_layout: str = data,
    ) -> Tensor:
        """Transposed {n}-d convolution: the gradient of `conv{n}d` with the same window and kernel.

        x: numbers [N, I, {axes}]. w: same dtype, the axes {transposed}, with O = outputs / groups.
        stride, dilation: {per_axis}. padding: {padding},
        cut off the result. output_padding: {per_axis}, elements added
        at the end of each axis, less than the stride. layout, kernel_layout, out_layout: the
        letters of {data}, {transposed} and {data} in the order in which x, w and the result have
        them.
        Result: [N, O, {axes}] of x's dtype; each spatial axis has the size ``(size - 1) * stride -
        padding before and after + dilation * (taps - 1) + 1 + output_padding``.
        Integers wrap around, and have no gradient.

        Raises TypeInferError if shapes, dtypes or groups do not match.
        """
        window = (stride, padding, output_padding, dilation, groups)
        return types.forward(x, w, *window, layout, kernel_layout, out_layout)

    _gradients(n, conv_transpose, types)


for _n in DATA:
    _convolution(_n)
    _transposed_convolution(_n)
