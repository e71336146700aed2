"""Comparison of the neighbourhoods of two images, as optical flow needs it. Add one here."""

from __future__ import annotations

from meta.ir.types import UNKNOWN, Dim, UnknownDim
from meta.op.core import Ints, Tensor, TensorType, op
from meta.op.core.check import require, require_float, require_ndim
from meta.op.core.same_dtype import require_same_dtype
from meta.op.core.window import pads


def displacements(max_displacement: int, stride2: int) -> tuple[int, ...]:
    """Return the displacements of one axis, in steps of stride2 around 0."""
    radius = max_displacement // stride2
    return tuple(stride2 * d for d in range(-radius, radius + 1))


def _matched(
    x1: TensorType,
    x2: TensorType,
    kernel_size: int,
    max_displacement: int,
    stride1: int,
    stride2: int,
    padding: Ints,
) -> TensorType:
    """Check the arguments; return the type of `correlation`."""
    require_ndim(x1, 4, "x1")
    require_float(x1, "x1")
    require_same_dtype(x1, x2)
    fits = x1.shape == x2.shape or not (x1.is_static and x2.is_static)
    require(fits, "x1 and x2 differ in shape", found=f"x1={x1}, x2={x2}")
    require(
        kernel_size >= 1 and kernel_size % 2 == 1,
        "kernel_size must be odd and positive",
        found=kernel_size,
    )
    require(max_displacement >= 0, "max_displacement is negative", found=max_displacement)
    require(min(stride1, stride2) >= 1, "strides must be positive", found=(stride1, stride2))
    around = pads(padding)
    border = max_displacement + kernel_size // 2
    sizes: list[Dim] = []
    for extent, before, after in zip(x1.shape[2:], around[:2], around[2:], strict=True):
        if isinstance(extent, UnknownDim):
            sizes.append(UNKNOWN)
            continue
        room = extent + before + after - 2 * border
        positive = not isinstance(room, int) or room >= 1
        require(positive, "the border leaves nothing of x1", expected=f"more than {2 * border}",
                found=f"{extent} + {before} + {after}")  # fmt: skip
        sizes.append((room + stride1 - 1) // stride1)
    count = 2 * (max_displacement // stride2) + 1
    return x1.with_shape((x1.shape[0], count * count, *sizes))


@op
def correlation(
    x1: Tensor,
    x2: Tensor,
    kernel_size: int = 1,
    max_displacement: int = 1,
    stride1: int = 1,
    stride2: int = 1,
    padding: Ints = 0,
    is_multiply: bool = True,
) -> Tensor:
    """Compare the patches of x1 with those of x2 around the same places:

    ``y[n, q, i, j] = mean(x1[n, c, u + p, v + r] * x2[n, c, u + p + dy, v + r + dx])`` over the
    channels c and the taps p and r of a kernel, at u = i * stride1 + max_displacement and v alike,
    on images that ``padding`` surrounds with zeros. Channel q is displacement (dy, dx) of a square
    of multiples of stride2, row by row, none beyond max_displacement.

    x1, x2: floating point [N, C, H, W], of one type. kernel_size: odd. padding: int, (vertical,
    horizontal) or (top, left, bottom, right). is_multiply: False takes |x1 - x2| for the product.
    Result: [N, D * D, OH, OW] with D = 2 * (max_displacement // stride2) + 1 and
    OH = ceil((H + top + bottom - 2 * max_displacement - kernel_size + 1) / stride1).
    Half precision accumulates in float32. Dosovitskiy et al., FlowNet, arXiv:1504.06852, 3.

    Raises TypeInferError for other shapes, dtypes or numbers, or if nothing is left of x1.
    """
    return _matched(x1, x2, kernel_size, max_displacement, stride1, stride2, padding)


@op
def correlation_dx(
    x1: Tensor,
    x2: Tensor,
    dy: Tensor,
    kernel_size: int = 1,
    max_displacement: int = 1,
    stride1: int = 1,
    stride2: int = 1,
    padding: Ints = 0,
    is_multiply: bool = True,
) -> tuple[TensorType, TensorType]:
    """Gradients of `correlation` with respect to x1 and x2; of |x1 - x2| it is 0 where they agree.

    dy: gradient of the result, of its type. All else as in the forward call.
    """
    y = _matched(x1, x2, kernel_size, max_displacement, stride1, stride2, padding)
    fits = dy == y or not (dy.is_static and y.is_static)
    require(fits, "dy is not of the forward result's type", expected=y, found=dy)
    return x1, x2
