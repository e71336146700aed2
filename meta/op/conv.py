"""Convolutions over one, two and three spatial axes, and transposed ones, which are the gradient
operators as forward operators. Their types are made in `meta/op/core/convolution.py`.
"""

from collections.abc import Sequence
from typing import Any

from meta.base.errors import TypeInferError
from meta.base.registry import OPERATORS
from meta.op.core import Ints, Op, Tensor, Weight, op
from meta.op.core.check import pair
from meta.op.core.convolution import Convolution, conv_shape, conv_transpose_shape
from meta.op.core.function import as_operand
from meta.op.core.op import ComposedOp
from meta.op.core.window import DATA, KERNEL, TRANSPOSED_KERNEL, fill_docstring

Extents = int | Sequence[int]


def _arrays(name: str, x: Any, weight: Any, bias: Any) -> tuple[Any, Any, Any]:
    """Return the arrays of a call; TypeInferError for numbers in the place of a bias."""
    if bias is None or hasattr(bias, "shape"):
        return as_operand(x), as_operand(weight), None if bias is None else as_operand(bias)
    raise TypeInferError(
        "bias is no array",
        op=name,
        expected="an array, a number for each output channel, or None",
        found=repr(bias),
        hint=f"stride={bias!r}: the bias comes behind the weight",
    )


def _named_padding(
    name: str, padding: str, extents: list[int], stride: Any, dilation: Any
) -> int | tuple[int, ...]:
    """Return the padding before each axis, then after each, that "same" or "valid" stands for."""
    if padding == "valid":
        return 0
    steps = stride if isinstance(stride, tuple | list) else (stride,)
    if padding != "same" or any(s != 1 for s in steps):
        raise TypeInferError(
            "this padding is not known",
            op=name,
            expected='numbers, "valid", or "same" with stride 1',
            found=f"{padding!r} with stride {stride}",
        )
    around = pair(
        dilation if isinstance(dilation, int) else tuple(dilation), "dilation", len(extents)
    )
    total = [d * (k - 1) for k, d in zip(extents, around, strict=True)]
    return (*(t // 2 for t in total), *(t - t // 2 for t in total))


def _applied(
    forward: ComposedOp, n: int, x: Any, weight: Any, bias: Any, options: Any, layout: str
) -> Any:
    """Return the result of an operator with a bias, for a batch or for one example."""
    one = x.ndim == n + 1
    y = forward.plain(OPERATORS["expand_dims"](x, 0) if one else x, weight, *options)
    if bias is not None:
        y = OPERATORS["bias_add"](y, bias, layout.index("C"))
    return OPERATORS["squeeze"](y, (0,)) if one else y


def _gradients(n: int, forward: Op, types: Convolution) -> None:
    name = forward.name

    @op(name=f"{name}_dx", options=forward)
    @fill_docstring(n, name)
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
    @fill_docstring(n, name)
    def by_kernel(*arguments: Any) -> Tensor:
        """Gradient of `{name}` with respect to w.

        x_or_w: the input. y: the forward result; not used, may be None. dy: gradient of the
        result. shape: of w, in ``kernel_layout``. The rest as in the forward call. Result:
        ``shape``, of dy's dtype.

        Raises TypeInferError if ``dy`` is not of the shape that the forward call gives.
        """
        return types.by_kernel(*arguments)


def _convolution(n: int) -> None:
    types, data, kernel = Convolution(conv_shape, KERNEL[n]), DATA[n], KERNEL[n]

    @op(name=f"conv{n}d", composed=True)
    @fill_docstring(n)
    def conv(
        x: Tensor,
        w: Weight,
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

        A call is torch's, ``conv{n}d(x, weight, bias=None, stride=1, padding=0, dilation=1,
        groups=1)``, with the layouts by name. bias: [O], added behind. padding may be "valid", or
        "same" with stride 1. x may be one example, without N.

        Raises TypeInferError if shapes, dtypes or groups do not match, or no window fits.
        """
        options = (stride, padding, dilation, groups, layout, kernel_layout, out_layout)
        return types.forward(x, w, *options)

    @conv.calls
    def call(
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Extents = 1,
        padding: Extents | str = 0,
        dilation: Extents = 1,
        groups: int = 1,
        *,
        layout: str = data,
        kernel_layout: str = kernel,
        out_layout: str = data,
    ) -> Any:
        x, weight, bias = _arrays(conv.name, x, weight, bias)
        if isinstance(padding, str):
            extents = [weight.shape[kernel_layout.index(axis)] for axis in data[2:]]
            padding = _named_padding(conv.name, padding, extents, stride, dilation)
        options = (stride, padding, dilation, groups, layout, kernel_layout, out_layout)
        return _applied(conv, n, x, weight, bias, options, out_layout)

    _gradients(n, conv, types)


def _transposed_convolution(n: int) -> None:
    data, kernel = DATA[n], TRANSPOSED_KERNEL[n]
    types = Convolution(conv_transpose_shape, kernel)

    @op(name=f"conv_transpose{n}d", composed=True)
    @fill_docstring(n)
    def conv_transpose(
        x: Tensor,
        w: Weight,
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

        A call is torch's, ``conv_transpose{n}d(x, weight, bias=None, stride=1, padding=0,
        output_padding=0, groups=1, dilation=1)``, with the layouts by name; see `conv{n}d`.

        Raises TypeInferError if shapes, dtypes or groups do not match.
        """
        window = (stride, padding, output_padding, dilation, groups)
        return types.forward(x, w, *window, layout, kernel_layout, out_layout)

    @conv_transpose.calls
    def call(
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Extents = 1,
        padding: Extents = 0,
        output_padding: Extents = 0,
        groups: int = 1,
        dilation: Extents = 1,
        *,
        layout: str = data,
        kernel_layout: str = kernel,
        out_layout: str = data,
    ) -> Any:
        x, weight, bias = _arrays(conv_transpose.name, x, weight, bias)
        window = (stride, padding, output_padding, dilation, groups)
        options = (*window, layout, kernel_layout, out_layout)
        return _applied(conv_transpose, n, x, weight, bias, options, out_layout)

    _gradients(n, conv_transpose, types)


for _n in DATA:
    _convolution(_n)
    _transposed_convolution(_n)
