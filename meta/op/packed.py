"""Products and convolutions with packed weights: blocks of output channels, which lie together for
each number of x that they multiply. So a kernel reads whole vectors, one behind the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from meta import op as operators
from meta.op.conv import conv_shape
from meta.op.core import Ints, Tensor, Weight, op
from meta.op.core.axes import Args, Axes, labels_of, layout_labels
from meta.op.core.check import (
    require,
    require_float,
    require_ndim,
    require_same_dtype,
    shapes_compatible,
)
from meta.op.core.function import as_operand, function
from meta.op.core.window import arrange_shape, layout_permutation

LANES = (16, 8)
"""Output channels of a block, the widest first: one or two vectors of a CPU."""


def _product_axes(args: Args) -> Iterable[Axes]:
    """Rows of x and blocks of the weight's are free."""
    front = labels_of(args["x"].ndim - 1)
    return (Axes({"x": (*front, "k"), "weight": (None, "k", None)}, ((*front, None),)),)


@op(axes=_product_axes)
def packed_matmul(x: Tensor, weight: Weight) -> Tensor:
    """``x @ w.T`` of a matrix w, (n, k), that `pack_weight` laid out.

    x: (..., k), floating point. weight: (n / b, k, b), of the same dtype, b rows of w in a block:
    ``weight[i, c, j] = w[i * b + j, c]``. Relay calls it nn.contrib_dense_pack.

    Result: (..., n). Half precision accumulates in float32. Raises TypeInferError for other dtypes
    and for shapes that do not fit.
    """
    require_float(x, "x")
    require_same_dtype(x, weight)
    require(x.ndim > 0, "x has no columns", expected="x[..., k]", found=str(x))
    require_ndim(weight, 3, "weight")
    blocks, k, lanes = weight.static_shape
    what = f"x has {x.shape[-1]} columns and the weight {k}"
    fits = shapes_compatible(x.shape[-1:], (k,))
    require(fits, what, expected="as many", found=f"x={x}, weight={weight}")
    return x.with_shape((*x.shape[:-1], blocks * lanes))


def _image_axes(args: Args) -> Iterable[Axes]:
    """Images are free."""
    tensors = {"x": layout_labels(args["layout"], N="n"), "weight": (None,) * 5}
    return (Axes(tensors, (layout_labels("NHWC", N="n"),)),)


@op(axes=_image_axes)
def packed_conv2d(
    x: Tensor,
    weight: Weight,
    stride: Ints = 1,
    padding: Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
    layout: str = "NHWC",
) -> Tensor:
    """`conv2d` by weights that `pack_weight` laid out, of images with the channels last.

    x: (N, H, W, C), floating point, or the axes in the order of ``layout``. weight: of the same
    dtype, (O / b, kh, kw, C / groups, b), b output channels in a block:
    ``weight[i, p, q, c, j] = w[i * b + j, c, p, q]``. stride, padding, dilation, groups: as those
    of `conv2d`.

    Result: (N, H', W', O). Half precision accumulates in float32. Raises TypeInferError as
    `conv2d`.
    """
    require_float(x, "x")
    require_same_dtype(x, weight)
    require_ndim(x, 4, "x")
    require_ndim(weight, 5, "weight")
    blocks, *taps, channels, lanes = weight.static_shape
    image = tuple(x.shape[i] for i in layout_permutation(layout, "NCHW", "layout"))
    kernel = (blocks * lanes, channels, *taps)
    shape = conv_shape(image, kernel, stride, padding, dilation, groups)
    return x.with_shape(arrange_shape(shape, "NCHW", "NHWC", "out_layout"))


def lanes_of(outputs: int) -> int | None:
    """Return how many of so many output channels are a block; None if no block divides them."""
    return next((lanes for lanes in LANES if outputs % lanes == 0), None)


@function
def pack_weight(w: Any, lanes: int | None = None) -> Any:
    """Return a weight as `packed_matmul` takes it, of a matrix (n, k), or as `packed_conv2d` does,
    of the kernel of a convolution (O, I, kh, kw).

    lanes: output channels of a block, a divisor of n or O; 16 or 8 unless given. Raises
    TypeInferError for other shapes, and if no block divides the channels. `unpack_weight` is the
    inverse.

    >>> meta.pack_weight(meta.ones((32, 5))).shape, meta.pack_weight(meta.ones((8, 3, 1, 1))).shape
    ((2, 5, 16), (1, 1, 1, 3, 8))
    """
    w = as_operand(w)
    require(
        w.ndim in (2, 4), "no weight is packed so", expected="(n, k) or (O, I, kh, kw)", found=w
    )
    n = w.shape[0]
    each = lanes_of(n) if lanes is None else lanes
    require(
        each is not None and each > 0 and n % each == 0,
        "blocks do not divide the output channels",
        expected=f"a divisor of {n}",
        found=lanes if lanes is not None else f"{n} channels and blocks of 16 or 8",
    )
    blocks = operators.reshape(w, (n // each, each, *w.shape[1:]))
    order = (0, 2, 1) if w.ndim == 2 else (0, 3, 4, 2, 1)
    return operators.permute_dims(blocks, order)


@function
def unpack_weight(weight: Any) -> Any:
    """Return the matrix (n, k), or the kernel (O, I, kh, kw), that `pack_weight` laid out.

    Raises TypeInferError for an array of another rank.

    >>> w = meta.reshape(meta.arange(48.0), (16, 3))
    >>> bool(meta.all(meta.unpack_weight(meta.pack_weight(w)) == w))
    True
    """
    weight = as_operand(weight)
    packed = weight.ndim in (3, 5)
    require(packed, "this is no packed weight", expected="3 or 5 axes", found=list(weight.shape))
    order = (0, 2, 1) if weight.ndim == 3 else (0, 4, 3, 1, 2)
    blocks = operators.permute_dims(weight, order)
    return operators.reshape(blocks, (weight.shape[0] * weight.shape[-1], *blocks.shape[2:]))
