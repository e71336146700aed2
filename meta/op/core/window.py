"""Arithmetic of sliding windows and layouts, shared by type functions and kernels.

Convolution and pooling say what a window is in the same words: kernel, stride, padding, dilation.
Here they become one `Taps` per spatial axis. Nothing here depends on how many spatial axes there
are: `convolution` and its gradients' types serve conv1d, conv2d and conv3d.
"""

from __future__ import annotations

from dataclasses import dataclass

from meta.base.errors import TypeInferError
from meta.ir.types import UNKNOWN, Dim, TensorType
from meta.op.core.check import pair, require, require_float, require_ndim

# The orders of axes in which type functions and kernels think, by the number of spatial axes.
DATA = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
KERNEL = {1: "OIW", 2: "OIHW", 3: "OIDHW"}


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


def convolved(
    x: tuple[Dim, ...],
    w: tuple[int, ...],
    stride: int | tuple[int, ...],
    padding: int | tuple[int, ...],
    dilation: int | tuple[int, ...],
    groups: int,
) -> tuple[Dim, ...]:
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


def convolution(
    count: int,
    x: TensorType,
    w: TensorType,
    stride: int | tuple[int, ...],
    padding: int | tuple[int, ...],
    dilation: int | tuple[int, ...],
    groups: int,
    layouts: tuple[str, str, str],
) -> TensorType:
    """Return the type of a convolution over ``count`` spatial axes.

    layouts: of x, w and the result.
    Raises TypeInferError if shapes, dtypes or groups do not match, or no window fits.
    """
    for value, name in ((x, "x"), (w, "w")):
        require_ndim(value, count + 2, name)
        require_float(value, name)
    require(x.dtype == w.dtype, "x and w differ in dtype", found=f"{x.dtype} and {w.dtype}")
    layout, kernel_layout, out_layout = layouts
    to_data = permutation(layout, DATA[count], "layout")
    to_kernel = permutation(kernel_layout, KERNEL[count], "kernel_layout")
    data, kernel = (x.shape[i] for i in to_data), (w.static_shape[i] for i in to_kernel)
    shape = convolved(tuple(data), tuple(kernel), stride, padding, dilation, groups)
    return TensorType(arranged(shape, DATA[count], out_layout, "out_layout"), x.dtype)


def check_gradient(
    x_or_w: TensorType, dy: TensorType, shape: tuple[int, ...], count: int = 2
) -> None:
    """Check what the gradients of all convolutions over ``count`` axes have in common."""
    ndim = count + 2
    require(len(shape) == ndim, f"shape must have {ndim} extents", found=shape)
    require_ndim(x_or_w, ndim, "x_or_w")
    require_ndim(dy, ndim, "dy")
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


def convolution_dx(
    count: int,
    w: TensorType,
    dy: TensorType,
    shape: tuple[int, ...],
    stride: int | tuple[int, ...],
    padding: int | tuple[int, ...],
    dilation: int | tuple[int, ...],
    groups: int,
) -> TensorType:
    """Return the type of a convolution's gradient by its input of this shape."""
    check_gradient(w, dy, shape, count)
    expected = convolved(shape, w.static_shape, stride, padding, dilation, groups)
    return gradient_type(dy, expected, shape)


def convolution_dw(
    count: int,
    x: TensorType,
    dy: TensorType,
    shape: tuple[int, ...],
    stride: int | tuple[int, ...],
    padding: int | tuple[int, ...],
    dilation: int | tuple[int, ...],
    groups: int,
) -> TensorType:
    """Return the type of a convolution's gradient by its kernel of this shape."""
    check_gradient(x, dy, shape, count)
    expected = convolved(x.shape, shape, stride, padding, dilation, groups)
    return gradient_type(dy, expected, shape)
