"""Convolutions over one, two and three spatial axes, and transposed ones, which are the gradient
operators as forward operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from meta.base.errors import TypeInferError
from meta.base.registry import OPERATORS
from meta.ir.types import UNKNOWN, Dim, TensorType, UnknownDim
from meta.op.core import Ints, Op, Tensor, Weight, op
from meta.op.core.axes import Args, Axes, AxesRule, layout_labels
from meta.op.core.check import pair, require, require_float, require_ndim, require_same_dtype
from meta.op.core.function import as_operand
from meta.op.core.op import ComposedOp
from meta.op.core.window import (
    DATA,
    KERNEL,
    TRANSPOSED_KERNEL,
    arrange_shape,
    fill_docstring,
    layout_permutation,
    pads,
    window,
)

# The types of convolutions, of transposed ones and of their gradients, over any number of axes.
#
# `conv_shape` and `conv_transpose_shape` are the shape rules, in one order of axes; a `Convolution`
# applies one of them to tensors of any layout.


Shape = tuple[Dim, ...]


def conv_shape(
    x: Shape, w: tuple[int, ...], stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Shape:
    """Return the shape of a convolution of shapes in `DATA` and `KERNEL` order, in `DATA` order."""
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
    axes = window(x[2:], w[2:], stride, padding, dilation)
    return (x[0], outputs, *(axis.out for axis in axes))


def conv_transpose_shape(
    x: Shape,
    w: tuple[int, ...],
    stride: Ints,
    padding: Ints,
    output_padding: Ints,
    dilation: Ints,
    groups: int,
) -> Shape:
    """As `conv_shape`, of the transposed convolution; w is in `TRANSPOSED_KERNEL` order."""
    count = len(x) - 2
    require(groups >= 1, "groups must be positive", found=groups)
    fits = not isinstance(x[1], int) or w[0] == x[1]
    require(fits, "the channels of x and w differ", found=f"{x[1]} and {w[0]}")
    require(w[0] % groups == 0, "groups must divide the channels", found=f"{w[0]} % {groups}")
    require(w[1] >= 1, "w has no output channel", found=list(w))
    extra = pair(output_padding, "output_padding", count)
    steps = pair(stride, "stride", count)
    fits = all(0 <= e < s for e, s in zip(extra, steps, strict=True))
    expected = f"not negative, below the stride {stride}"
    require(fits, "output_padding does not fit", expected=expected, found=output_padding)
    around = pads(padding, count)
    spread = pair(dilation, "dilation", count)
    sizes: list[Dim] = []
    for i in range(count):
        extent, size = spread[i] * (w[2 + i] - 1) + 1, x[2 + i]
        if isinstance(size, UnknownDim):
            sizes.append(UNKNOWN)
            continue
        found = (size - 1) * steps[i] - around[i] - around[count + i] + extent + extra[i]
        positive = not isinstance(found, int) or found >= 1
        require(positive, "nothing is left inside the padding", found=padding)
        sizes.append(found)
    window(tuple(sizes), w[2:], stride, padding, dilation)
    return (x[0], w[1] * groups, *sizes)


@dataclass(frozen=True, slots=True)
class Convolution:
    """The types of a convolution, transposed or not, and of its two gradients.

    shape_of: `conv_shape` or `conv_transpose_shape`. kernel: the order of axes in which it takes
    w's shape.
    options: an operator's arguments behind its tensors and ``shape``: the numbers that ``shape_of``
    takes, then the layouts of x, of w and of the result.
    Methods raise TypeInferError if shapes, dtypes, groups or layouts do not match.
    """

    shape_of: Callable[..., Shape]
    kernel: str

    def forward(self, x: TensorType, w: TensorType, *options: Any) -> TensorType:
        """Return the type of the result. Integers are fine; only floats have gradients."""
        self._check(x=x, w=w)
        require(x.dtype != "bool", "bools have no product", expected="numbers", found=str(x))
        return TensorType(self._result(x.shape, w.static_shape, options), x.dtype)

    def by_input(
        self, w: TensorType, y: TensorType | None, dy: TensorType, shape: Shape, *options: Any
    ) -> TensorType:
        """Return the type of the gradient by x of this shape."""
        self._check(x_or_w=w, dy=dy)
        return self._gradient(shape, w.static_shape, y, dy, shape, options)

    def by_kernel(
        self, x: TensorType, y: TensorType | None, dy: TensorType, shape: Shape, *options: Any
    ) -> TensorType:
        """Return the type of the gradient by w of this shape."""
        self._check(x_or_w=x, dy=dy)
        return self._gradient(x.shape, shape, y, dy, shape, options)

    def _check(self, **tensors: TensorType) -> None:
        for name, value in tensors.items():
            require_ndim(value, len(self.kernel), name)
        require_same_dtype(*tensors.values())

    def _gradient(
        self,
        x: Shape,
        w: Shape,
        y: TensorType | None,
        dy: TensorType,
        shape: Shape,
        options: tuple[Any, ...],
    ) -> TensorType:
        require_float(dy, "dy")
        ndim = len(self.kernel)
        require(len(shape) == ndim, f"shape must have {ndim} extents", found=shape)
        expected = self._result(x, w, options)
        require(
            dy.shape == expected or not dy.is_static,
            "dy has not the shape of the forward result",
            expected=list(expected),
            found=str(dy),
        )
        matches = y is None or y == dy or not (y.is_static and dy.is_static)
        require(matches, "y and dy differ in type", found=f"{y} and {dy}")
        return TensorType(shape, dy.dtype)

    def _result(self, x: Shape, w: Shape, options: tuple[Any, ...]) -> Shape:
        """Return the shape of the result in its layout, of shapes in theirs."""
        *window_, layout, kernel_layout, out_layout = options
        data = DATA[len(self.kernel) - 2]
        image = tuple(x[i] for i in layout_permutation(layout, data, "layout"))
        kernel = tuple(
            w[i] for i in layout_permutation(kernel_layout, self.kernel, "kernel_layout")
        )
        return arrange_shape(self.shape_of(image, kernel, *window_), data, out_layout, "out_layout")


def _axes(operator: str, kernel: str) -> AxesRule:
    """Return the axes of a convolution, or, with ``operator`` "dx" or "dw", of a gradient of one.

    As of a product of channels: ``ni,oi->no``. The groups are pieces of the channels of x and y,
    and of the first axis of w, which ``kernel`` is the order of.
    """

    def rule(args: Args) -> Iterable[Axes]:
        of_groups = {"N": "n", "C": "g"}, {kernel[0]: "g"}, {"N": "n", "C": "g"}
        whole = {"N": "n", "C": "i"}, {"O": "o", "I": "i"}, {"N": "n", "C": "o"}
        found = []
        for roles in [whole, of_groups] if args["groups"] == 1 else [of_groups]:
            orders = args["layout"], args["kernel_layout"], args["out_layout"]
            x, w, y = (layout_labels(o, **r) for o, r in zip(orders, roles, strict=True))
            tensors, result = {
                "": ({"x": x, "w": w}, y),
                "dx": ({"x_or_w": w, "y": y, "dy": y}, x),
                "dw": ({"x_or_w": x, "y": y, "dy": y}, w),
            }[operator]
            shapes = {"shape": result} if operator else {}
            counts = {"groups": "g"} if roles is of_groups else {}
            found.append(Axes(tensors, (result,), shapes=shapes, counts=counts))
        return found

    return rule


# The operators.


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

    @op(name=f"{name}_dx", options=forward, axes=_axes("dx", types.kernel))
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

    @op(name=f"{name}_dw", schema=by_input, axes=_axes("dw", types.kernel))
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

    @op(name=f"conv{n}d", composed=True, axes=_axes("", kernel))
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

    @op(name=f"conv_transpose{n}d", composed=True, axes=_axes("", kernel))
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
