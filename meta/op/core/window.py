"""Arithmetic of sliding windows and layouts, shared by type functions and kernels.

Convolution and pooling say what a window is in the same words: kernel, stride, padding, dilation.
Here they become one `Taps` per spatial axis. Nothing here depends on how many spatial axes there
are. The types of convolutions are in `convolution.py`, those of pooling in `pooling.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from meta.base.errors import TypeInferError
from meta.ir.types import UNKNOWN, Dim, UnknownDim
from meta.op.core.check import pair

F = TypeVar("F", bound=Callable[..., Any])
# The orders of axes in which type functions and kernels think, by the number of spatial axes.
DATA = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
KERNEL = {1: "OIW", 2: "OIHW", 3: "OIDHW"}
TRANSPOSED_KERNEL = {1: "IOW", 2: "IOHW", 3: "IODHW"}
_PER_AXIS = {1: "int or (int,)", 2: "int or (vertical, horizontal)", 3: "int or one int per axis"}
_PADDING = {
    1: "int or (before, after)",
    2: "int, (vertical, horizontal) or (top, left, bottom, right)",
    3: "int, (depth, vertical, horizontal) or (front, top, left, back, bottom, right)",
}


def fill_docstring(count: int, name: str = "") -> Callable[[F], F]:
    """Fill in the docstring of an operator over ``count`` spatial axes: their number {n}, the shape
    {shape} and the layout {data} of its tensor, the orders {kernel} and {transposed} of a kernel's
    axes, what an option {per_axis} and a {padding} may be; and the ``name`` of another operator.
    """

    def fill(function: F) -> F:
        assert function.__doc__ is not None
        function.__doc__ = function.__doc__.format(
            n=count,
            name=name,
            shape=", ".join(DATA[count]),
            axes=", ".join(DATA[count][2:]),
            data=DATA[count],
            kernel=KERNEL[count],
            transposed=TRANSPOSED_KERNEL[count],
            per_axis=_PER_AXIS[count],
            padding=_PADDING[count],
        )
        return function

    return fill


@dataclass(frozen=True, slots=True)
class Taps:
    """One spatial axis: result ``o`` reads ``o * stride - before + k * dilation``, k < kernel."""

    size: Dim
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int
    ceil: bool

    @property
    def extent(self) -> int:
        """How many input positions one window spans."""
        return self.dilation * (self.kernel - 1) + 1

    @property
    def out(self) -> Dim:
        """How many windows there are; not positive if none fits.

        With ``ceil`` a last, incomplete window counts too, if it starts inside the input or the
        padding before it (torch's rule).
        """
        padding = self.before + self.after
        if isinstance(self.size, UnknownDim) or (self.ceil and not isinstance(self.size, int)):
            return self.size if self.stride == 1 and self.extent == 1 + padding else UNKNOWN
        room = self.size + padding - self.extent
        if not self.ceil:
            return room // self.stride + 1
        count = -(-room // self.stride) + 1
        return count - ((count - 1) * self.stride >= self.size + self.before)


def pads(padding: int | tuple[int, ...], count: int = 2) -> tuple[int, ...]:
    """Return the padding before each of ``count`` axes, then that after each.

    padding: an int, one per axis, or already all of them: (top, left, bottom, right).
    """
    values = padding if isinstance(padding, tuple) else (padding,)
    if len(values) in (1, count, 2 * count) and min(values) >= 0:
        return values * (2 * count // len(values))
    counts = ", ".join(str(n) for n in sorted({1, count}))
    raise TypeInferError(
        "padding does not fit",
        expected=f"{counts} or {2 * count} ints, none negative",
        found=padding,
    )


def window(
    sizes: tuple[Dim, ...],
    kernel: int | tuple[int, ...],
    stride: int | tuple[int, ...],
    padding: int | tuple[int, ...],
    dilation: int | tuple[int, ...],
    ceil: bool = False,
) -> tuple[Taps, ...]:
    """Return the spatial axes of a window over an input of ``sizes``, such as (height, width).

    Raises TypeInferError for wrong counts, for values that are not positive (padding: that are
    negative) and where not even one window fits.
    """
    count = len(sizes)
    around = pads(padding, count)
    named = {"kernel": kernel, "stride": stride, "dilation": dilation}
    values = {name: pair(value, name, count) for name, value in named.items()}
    for name, value in values.items():
        if min(value) < 1:
            raise TypeInferError(f"{name} must be positive", found=value)
    axes = []
    for i, (before, after) in enumerate(zip(around[:count], around[count:], strict=True)):
        k, s, d = (value[i] for value in values.values())
        axes.append(Taps(sizes[i], k, s, d, before, after, ceil))
        out = axes[i].out
        if isinstance(out, int) and out < 1:
            raise TypeInferError(
                "the window is larger than the padded input",
                expected=f"at least {axes[i].extent} along spatial axis {i}",
                found=f"{axes[i].size} + {before} + {after}",
            )
    return tuple(axes)


def layout_permutation(layout: str, canonical: str, name: str) -> tuple[int, ...]:
    """Return the axes that bring a tensor of ``layout`` into the ``canonical`` order of letters.

    Raises TypeInferError for a layout of other letters (split ones such as "NCHW8c" included).
    """
    if sorted(layout) != sorted(canonical):
        raise TypeInferError(
            f"{name} is not supported", expected=f"the letters of {canonical!r} in some order",
            found=repr(layout),
        )  # fmt: skip
    return tuple(layout.index(letter) for letter in canonical)


def transposed_kernel_layout(kernel_layout: str) -> str:
    """Return a kernel's layout in the words of the convolution that is its own transposed.

    What one calls the input channels are the output channels of the other.
    """
    return kernel_layout.translate(str.maketrans("IO", "OI"))


def arrange_shape(
    shape: tuple[Dim, ...], canonical: str, layout: str, name: str
) -> tuple[Dim, ...]:
    """Return ``shape``, given in ``canonical`` order, in the order of ``layout``."""
    layout_permutation(layout, canonical, name)
    return tuple(shape[canonical.index(letter)] for letter in layout)
