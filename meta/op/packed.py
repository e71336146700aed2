"""Products and convolutions with packed weights: blocks of output channels, which lie together for
each number of x that they multiply, or for each four of 8 bits. So a kernel reads whole vectors,
one behind the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from meta import op as operators
from meta.ir.types import Dim, TensorType
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
FOUR = 4
"""Inputs of 8 bits that lie together for an output channel: one instruction multiplies and adds."""


def _product_axes(args: Args) -> Iterable[Axes]:
    """Rows of x and blocks of the weight's are free."""
    front = labels_of(args["x"].ndim - 1)
    if args["weight"].ndim == 4:
        return (Axes({"x": (*front, None), "weight": (None,) * 4}, ((*front, None),)),)
    return (Axes({"x": (*front, "k"), "weight": (None, "k", None)}, ((*front, None),)),)


def _operands(x: TensorType, weight: TensorType, axes: int) -> tuple[str, int, int]:
    """Return the dtype of the result, the inputs of a block of a weight, at most, and its lanes."""
    if x.dtype in ("int8", "uint8"):
        found = (str(weight.dtype), weight.ndim)
        alone = axes == 5 and weight.ndim == 5 and weight.shape[-2] == 1
        fits = found == ("int8", axes + 1) or (weight.dtype == "int8" and alone)
        expected = f"int8 of {axes + 1} axes, four inputs along the last"
        require(fits, f"the weight does not fit x of {x.dtype}", expected=expected, found=weight)
        *_, inputs, lanes, last = weight.static_shape
        if alone:
            return "int32", lanes, last
        require(last == FOUR, "inputs lie in fours", expected=FOUR, found=weight)
        return "int32", inputs * FOUR, lanes
    require_float(x, "x")
    require_same_dtype(x, weight)
    require_ndim(weight, axes, "weight")
    *_, inputs, lanes = weight.static_shape
    return x.dtype, inputs, lanes


@op(axes=_product_axes)
def packed_matmul(x: Tensor, weight: Weight) -> Tensor:
    """``x @ w.T`` of a matrix w, (n, k), that `pack_weight` laid out.

    x: (..., k), floating point. weight: (n / b, k, b), of the same dtype, b rows of w in a block:
    ``weight[i, c, j] = w[i * b + j, c]``. Relay calls it nn.contrib_dense_pack.
    Or x is uint8 or int8, and weight int8, (n / b, ceil(k / 4), b, 4), with four columns of w
    together: ``weight[i, c, j, t] = w[i * b + j, 4 * c + t]``, zeros behind the last.

    Result: (..., n). Half precision accumulates in float32; numbers of 8 bits are summed up in
    int32, which is the dtype of the result. Raises TypeInferError for other dtypes and for shapes
    that do not fit.

    >>> x = meta.array([[1, 1, 1, 1, 255]], dtype="uint8")
    >>> w = meta.array([[1, 2, 3, 4, 5]] * 8, dtype="int8")
    >>> int(meta.packed_matmul(x, meta.pack_weight(w))[0, 0])
    1285
    """
    require(x.ndim > 0, "x has no columns", expected="x[..., k]", found=str(x))
    dtype, k, lanes = _operands(x, weight, 3)
    what = f"x has {x.shape[-1]} columns and the weight {k}"
    fits = _fits(x.shape[-1], k, dtype)
    require(fits, what, expected="as many", found=f"x={x}, weight={weight}")
    return TensorType((*x.shape[:-1], weight.static_shape[0] * lanes), dtype)


def _fits(columns: Dim, k: int, dtype: str) -> bool:
    """Whether x may have so many columns; of the last four of 8 bits it has one or more."""
    least = k - FOUR + 1 if dtype == "int32" else k
    return (
        least <= columns <= k if isinstance(columns, int) else shapes_compatible((columns,), (k,))
    )


def _image_axes(args: Args) -> Iterable[Axes]:
    """Images are free."""
    tensors = {"x": layout_labels(args["layout"], N="n"), "weight": (None,) * args["weight"].ndim}
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
    Or x is uint8 or int8, and weight int8, (O / b, kh, kw, ceil(C / groups / 4), b, 4), with four
    channels together as of `packed_matmul`; where a group has one channel, it is as of floats. The
    padding is 0.

    Result: (N, H', W', O). Half precision accumulates in float32, 8 bits in int32, which is the
    dtype of the result. Raises TypeInferError as `conv2d`.
    """
    require_ndim(x, 4, "x")
    dtype, most, lanes = _operands(x, weight, 5)
    channels: Any = most
    blocks, *taps = weight.static_shape[:3]
    image = tuple(x.shape[i] for i in layout_permutation(layout, "NCHW", "layout"))
    of_group = image[1] // groups if isinstance(image[1], int) and groups > 0 else image[1]
    if weight.ndim == 6 and _fits(of_group, most, dtype):
        channels = of_group
    kernel = (blocks * lanes, channels, *taps)
    shape = conv_shape(image, kernel, stride, padding, dilation, groups)
    return TensorType(arrange_shape(shape, "NCHW", "NHWC", "out_layout"), dtype)


def lanes_of(outputs: int) -> int | None:
    """Return how many of so many output channels are a block; None if no block divides them."""
    return next((lanes for lanes in LANES if outputs % lanes == 0), None)


@function
def pack_weight(w: Any, lanes: int | None = None) -> Any:
    """Return a weight as `packed_matmul` takes it, of a matrix (n, k), or as `packed_conv2d` does,
    of the kernel of a convolution (O, I, kh, kw).

    lanes: output channels of a block, a divisor of n or O; 16 or 8 unless given. Of int8 four
    inputs lie together, unless there is one. Raises TypeInferError for other shapes, and if no
    block divides the channels. `unpack_weight` is the inverse.

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
    if w.dtype == "int8" and (w.ndim == 2 or w.shape[1] > 1):
        w = operators.pad(w, ((0, 0), (0, -w.shape[1] % FOUR), *[(0, 0)] * (w.ndim - 2)))
        fours = (n // each, each, w.shape[1] // FOUR, FOUR, *w.shape[2:])
        order: tuple[int, ...] = (0, 2, 1, 3) if w.ndim == 2 else (0, 4, 5, 2, 1, 3)
        return operators.permute_dims(operators.reshape(w, fours), order)
    blocks = operators.reshape(w, (n // each, each, *w.shape[1:]))
    order = (0, 2, 1) if w.ndim == 2 else (0, 3, 4, 2, 1)
    return operators.permute_dims(blocks, order)


@function
def unpack_weight(weight: Any) -> Any:
    """Return the matrix (n, k), or the kernel (O, I, kh, kw), that `pack_weight` laid out; of int8
    with the zeros that fill the last four inputs.

    Raises TypeInferError for an array of another rank.

    >>> w = meta.reshape(meta.arange(48.0), (16, 3))
    >>> bool(meta.all(meta.unpack_weight(meta.pack_weight(w)) == w))
    True
    """
    weight = as_operand(weight)
    packed = weight.ndim in (3, 4, 5, 6)
    require(packed, "this is no packed weight", expected="3 to 6 axes", found=list(weight.shape))
    if weight.ndim in (4, 6):
        *taps, inputs = range(1, weight.ndim - 2)
        lanes, four = weight.ndim - 2, weight.ndim - 1
        blocks = operators.permute_dims(weight, (0, lanes, inputs, four, *taps))
        outputs, columns = weight.shape[0] * weight.shape[lanes], weight.shape[inputs] * FOUR
        return operators.reshape(blocks, (outputs, columns, *weight.shape[1 : 1 + len(taps)]))
    order = (0, 2, 1) if weight.ndim == 3 else (0, 4, 3, 1, 2)
    blocks = operators.permute_dims(weight, order)
    return operators.reshape(blocks, (weight.shape[0] * weight.shape[-1], *blocks.shape[2:]))
