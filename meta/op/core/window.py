"""Arithmetic of sliding windows and layouts, shared by type functions and kernels.

Convolution and pooling say what a window is in the same words: kernel, stride, padding, dilation.
Here they become one `Taps` per spatial axis.
"""

from __future__ import annotations

from dataclasses import dataclass

from meta.base.errors import TypeInferError
from meta.ir.types import UNKNOWN, Dim, TensorType
from meta.op.core.check import pair, require, require_float, require_ndim


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
        if not isinstance(self.size, int):
            return self.size if self.stride == 1 and self.extent == 1 + padding else UNKNOWN
        room = self.size + padding - self.extent
        if not self.ceil:
            return room // self.stride + 1
        count = -(-room // self.stride) + 1
        return count - ((count - 1) * self.stride >= self.size + self.before)


def pads(padding: int | tuple[int, ...]) -> tuple[int, int, int, int]:
    """Return (top, left, bottom, right) of an int, (vertical, horizontal), or all four."""
    values = padding if isinstance(padding, tuple) else (padding,)
    if len(values) in (1, 2, 4) and min(values) >= 0:
        top, left, bottom, right = (*values, *values, *values, *values)[:4]
        return top, left, bottom, right
    raise TypeInferError(
        "padding does not fit", expected="1, 2 or 4 ints, none negative", found=padding
    )


def window(
    sizes: tuple[Dim, ...],
    kernel: int | tuple[int, ...],
    stride: int | tuple[int, ...],
    padding: int | tuple[int, ...],
    dilation: int | tuple[int, ...],
    ceil: bool = False,
) -> tuple[Taps, Taps]:
    """Return the two spatial axes of a window over an input of ``sizes`` (height, width).

    Raises TypeInferError for wrong counts, for values that are not positive (padding: that are
    negative) and where not even one window fits.
    """
    top, left, bottom, right = pads(padding)
    named = {"kernel": kernel, "stride": stride, "dilation": dilation}
    values = {name: pair(value, name) for name, value in named.items()}
    for name, value in values.items():
        if min(value) < 1:
            raise TypeInferError(f"{name} must be positive", found=value)
    axes = []
    for i, (before, after) in enumerate(((top, bottom), (left, right))):
        k, s, d = (value[i] for value in values.values())
        axes.append(Taps(sizes[i], k, s, d, before, after, ceil))
        out = axes[i].out
        if isinstance(out, int) and out < 1:
            raise TypeInferError(
                "the window is larger than the padded input",
                expected=f"at least {axes[i].extent} along spatial axis {i}",
                found=f"{axes[i].size} + {before} + {after}",
            )
    return axes[0], axes[1]


def permutation(layout: str, canonical: str, name: str) -> tuple[int, ...]:
    """Return the axes that bring a tensor of ``layout`` into the ``canonical`` order of letters.

    Raises TypeInferError for a layout of other letters (split ones such as "NCHW8c" included).
    """
    if sorted(layout) != sorted(canonical):
        raise TypeInferError(
            f"{name} is not supported", expected=f"the letters of {canonical!r} in some order",
            found=repr(layout),
        )  # fmt: skip
    return tuple(layout.index(letter) for letter in canonical)


def arranged(shape: tuple[Dim, ...], canonical: str, layout: str, name: str) -> tuple[Dim, ...]:
    """Return ``shape``, given in ``canonical`` order, in the order of ``layout``."""
    permutation(layout, canonical, name)
    return tuple(shape[canonical.index(letter)] for letter in layout)


def check_gradient(x_or_w: TensorType, dy: TensorType, shape: tuple[int, ...]) -> None:
    """Check what the gradients of all convolutions have in common."""
    require(len(shape) == 4, "shape must have 4 extents", found=shape)
    require_ndim(x_or_w, 4, "x_or_w")
    require_ndim(dy, 4, "dy")
    require_float(dy, "dy")
    dtypes = f"{x_or_w.dtype} and {dy.dtype}"
    require(x_or_w.dtype == dy.dtype, "x_or_w and dy differ in dtype", found=dtypes)


def gradient_type(dy: TensorType, expected: tuple[Dim, ...], shape: tuple[int, ...]) -> TensorType:
    """Return the gradient's type, after checking that dy has the forward result's shape."""
    require(
        dy.shape == expected or not dy.is_static,
        "dy has not the shape of the forward result",
        expected=list(expected),
        found=str(dy),
    )
    return TensorType(shape, dy.dtype)
