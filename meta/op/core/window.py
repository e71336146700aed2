"""Arithmetic of sliding windows and layouts, shared by type functions and kernels.

Convolution and pooling say what a window is in the same words: kernel, stride, padding, dilation.
Here they become one `Taps` per spatial axis. Nothing here depends on how many spatial axes there
are. Padding is here, too. Types of convolutions are in `op/conv.py`, of pooling in `op/pool.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from meta.base.errors import TypeInferError
from meta.ir.types import UNKNOWN, Dim, SymbolicDim, UnknownDim
from meta.op.core.check import pair, require

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


# What lies around a padded tensor, for type functions and kernels.
#
# To add a mode, say here which element a place outside reads.


MODES = ("constant", "edge", "reflect", "symmetric", "wrap")

TORCH_MODES = {"replicate": "edge", "circular": "wrap"}
"""What torch calls modes."""


def flat_widths(pad_width: Any, ndim: int) -> int | tuple[int, ...]:
    """Return the widths that a user's call of `pad` gives, flat.

    Raises TypeInferError for what is neither pairs, nor a pair, nor an int: a flat list, which
    torch takes for the last axis first.
    """
    given = pad_width.tolist() if isinstance(pad_width, np.ndarray) else pad_width
    if _is_width(given):
        return given  # type: ignore[no-any-return]
    if isinstance(given, tuple | list):
        if len(given) == 2 and all(map(_is_width, given)):
            return (*given,) * ndim
        pairs = [tuple(p) if isinstance(p, tuple | list) else p for p in given]
        if all(isinstance(p, tuple) and len(p) == 2 and all(map(_is_width, p)) for p in pairs):
            if len(pairs) == 1:
                return (*pairs[0],) * ndim
            if len(pairs) == ndim:
                return tuple(w for p in pairs for w in p)
    flat = isinstance(given, tuple | list) and len(given) > 2 and all(map(_is_width, given))
    torchs = "torch's list begins with the last axis: as pairs it is "
    raise TypeInferError(
        "pad_width does not fit",
        op="pad",
        expected=f"a pair (before, after) for each of {ndim} axes, ((1, 1), ...), or one pair, or "
        "one int",
        found=repr(pad_width),
        hint=torchs + _torch_pairs_text(given, ndim) if flat else None,
    )


def _torch_pairs_text(flat: Any, ndim: int) -> str:
    """Return torch's list as pairs, if it is one."""
    pairs = [(flat[i], flat[i + 1]) for i in range(0, len(flat) - 1, 2)][::-1]
    return str(tuple([(0, 0)] * (ndim - len(pairs)) + pairs))


def _is_width(value: Any) -> bool:
    return isinstance(value, int | np.integer | SymbolicDim) and not isinstance(value, bool)


def pad_pairs(pad_width: int | tuple[int, ...], ndim: int) -> tuple[tuple[int, int], ...]:
    """Return (before, after) for every axis from a flat list of pairs, or one width for all."""
    flat = (pad_width,) * (2 * ndim) if isinstance(pad_width, int) else pad_width
    require(
        len(flat) == 2 * ndim,
        "pad_width must be an int, or one pair (before, after) for every axis, flat",
        expected=f"{2 * ndim} ints",
        found=pad_width,
    )
    require(min(flat, default=0) >= 0, "pad_width is negative", found=pad_width)
    return tuple(zip(flat[::2], flat[1::2], strict=True))


def max_padding(extent: int, mode: str) -> int:
    """Return how far an axis can be padded on one side: up to the end of what is copied there."""
    if mode == "reflect":
        return max(extent - 1, 0)
    if mode in ("symmetric", "wrap"):
        return extent
    return 2**63 if extent else 0


def mirror(mode: str) -> int:
    """Return how far behind the first element its mirror lies: 0 on it, 1 on its outer border."""
    return 1 if mode == "symmetric" else 0


def mirror_ranges(
    before: int, after: int, extent: int, mode: str
) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Return (begin, end, sum) of the elements that a mirror's two sides copy.

    Element i in [begin, end) is also found at place ``sum - i`` of the padded axis.
    """
    m = mirror(mode)
    front = (1 - m, before + 1 - m, before - m)
    back = (extent - after - 1 + m, extent - 1 + m, before + 2 * (extent - 1) + m)
    return front, back


def source_index(place: Any, extent: int, mode: str, least: Any, greatest: Any) -> Any:
    """Return which element the place ``place`` of an axis reads, counted from the first element.

    ``least`` and ``greatest`` are the minimum and maximum of two, so that a place may be a number,
    a tensor of numbers or an expression. A mirror needs no condition: of the two ways to count, the
    one that stays inside is the smaller at the back, and the larger in front.
    """
    last = extent - 1
    if mode == "wrap":
        return (place + extent) % extent
    if mode == "edge":
        return greatest(least(place, last), 0)
    m = mirror(mode)
    return least(greatest(place, -m - place), 2 * last + m - greatest(place, -m - place))
