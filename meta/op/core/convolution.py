"""The types of convolutions, of transposed ones and of their gradients, over any number of axes.

`conv_shape` and `conv_transpose_shape` are the shape rules, in one order of axes; a `Convolution`
applies one of them to tensors of any layout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meta.ir.types import UNKNOWN, Dim, TensorType, UnknownDim
from meta.op.core.check import pair, require, require_float, require_ndim, require_same_dtype
from meta.op.core.schema import Ints
from meta.op.core.window import DATA, arrange_shape, layout_permutation, pads, window

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
