"""Detection and matching of images.

What depends on the data has a result of the largest extent there can be: the rows in use come
first, the others are -1, and a count says how many are in use.
"""

from __future__ import annotations

from typing import Any

from meta.ir.types import UNKNOWN, Dim, UnknownDim
from meta.op.core import AnyScalar, Ints, Scalar, Tensor, TensorType, op
from meta.op.core.axes import terms
from meta.op.core.check import (
    require,
    require_float,
    require_like,
    require_ndim,
    require_same_dtype,
)
from meta.op.core.window import pads


def _columns(data: Tensor, *columns: tuple[str, int, int]) -> None:
    """Check that ``data`` is [batch, boxes, columns] and has the (name, first, count) columns."""
    require_ndim(data, 3, "data")
    require_float(data, "data")
    width = data.shape[2]
    for name, first, count in columns:
        fits = not isinstance(width, int) or first + count <= width
        expected = f"{name} <= {width} - {count}" if isinstance(width, int) else None
        require(fits, f"{name} is no column of data", expected=expected, found=first)


def _require_single_number(value: Scalar | Tensor, name: str) -> None:
    """Check that a tensor in the place of a number has one element."""
    if isinstance(value, TensorType):
        fits = all(extent == 1 or not isinstance(extent, int) for extent in value.shape)
        require(fits, f"{name} must be one number", found=str(value))


@op(axes=terms("data=n -> n"))
def get_valid_counts(
    data: Tensor, score_threshold: Scalar | Tensor, id_index: int = 0, score_index: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Move the boxes with a score above ``score_threshold`` to the front, in their order.

    data: [batch, boxes, columns], floating point; a row is a box. score_threshold: a number, or a
    tensor of one element of data's dtype. score_index: the column of the scores. id_index: the
    column of the class; a box of a class below 0 (background) is not valid; if negative, boxes have
    no class.
    Result: (valid_count int32[batch], rows [batch, boxes, columns], indices int32[batch, boxes]):
    how many are valid, these rows, and where they were in data. Other rows and indices are -1.

    As the operator of this name in TVM and MXNet. Raises TypeInferError for columns out of range.
    """
    require(score_index >= 0, "score_index is negative", found=score_index)
    _columns(data, ("score_index", score_index, 1), ("id_index", id_index, 1))
    _require_single_number(score_threshold, "score_threshold")
    require_same_dtype(data, score_threshold)
    batch, boxes = data.shape[:2]
    return TensorType((batch,), "int32"), data, TensorType((batch, boxes), "int32")


@op(axes=terms("data=n valid_count=n indices=n -> n"))
def non_max_suppression(
    data: Tensor,
    valid_count: Tensor,
    indices: Tensor,
    max_output_size: AnyScalar | Tensor,
    iou_threshold: Scalar | Tensor,
    force_suppress: bool = False,
    top_k: int = -1,
    coord_start: int = 2,
    score_index: int = 1,
    id_index: int = 0,
    return_indices: bool = True,
    invalid_to_bottom: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Drop every box that overlaps one of its class that is kept and has a higher score.

    data: [batch, boxes, columns], floating point; only the first ``valid_count[b]`` rows of a batch
    element count. valid_count: int32[batch]. indices: int32[batch, boxes], the name of every row in
    the result; both may come from `get_valid_counts`.
    The rows are sorted by score, descending and stable (a NaN is first). From the first on, a row
    is dropped if its intersection over union with a row that was kept is at least
    ``iou_threshold``; boxes of area 0 have the value 0. Rows with a score that is not above 0 are
    kept, but neither drop others nor count in max_output_size.

    max_output_size: how many to keep; behind them all are dropped. Negative: no limit. An int or an
    integer tensor of one element. iou_threshold: a number, or a tensor of one element of data's
    dtype. If it is not above 0 nothing is sorted or dropped, and top_k and max_output_size do not
    count.
    force_suppress: classes do not matter. top_k: if above 0, only so many of the highest scores
    are looked at. coord_start: the first of the four columns of two opposite corners (x, y, x, y).
    score_index, id_index: columns of score and class; a negative id_index says that boxes have no
    class. A row of a class below 0 drops none.

    return_indices: the result is (kept int32[batch, boxes], count int32[batch, 1]): ``indices`` of
    the rows kept, best first, then -1; entries of ``indices`` below 0 are left out. Else it is the
    sorted rows, [batch, boxes, columns], in which a dropped row is -1; with invalid_to_bottom they
    are behind the rows kept.

    As the operator of this name in TVM, of which MXNet's box_nms is a part. (TVM's
    invalid_to_bottom also loses rows kept whose column 0 is negative, be it a coordinate; here they
    stay.) Raises TypeInferError for columns out of range and dtypes other than these.
    """
    require(min(score_index, coord_start) >= 0, "a column is negative", expected="0 or more")
    _columns(
        data,
        ("score_index", score_index, 1),
        ("id_index", id_index, 1),
        ("coord_start", coord_start, 4),
    )
    batch, boxes = data.shape[:2]
    for name, given, shape in (
        ("valid_count", valid_count, (batch,)),
        ("indices", indices, (batch, boxes)),
    ):
        wanted = TensorType(shape, "int32")
        static = given.is_static and data.is_static
        fits = given.dtype == "int32" and given.ndim == wanted.ndim
        fits = fits and (not static or given.shape == shape)
        require(fits, f"{name} does not fit data", expected=str(wanted), found=str(given))
    _require_single_number(iou_threshold, "iou_threshold")
    require_same_dtype(data, iou_threshold)
    _require_single_number(max_output_size, "max_output_size")
    dtype = max_output_size.dtype if isinstance(max_output_size, TensorType) else "int64"
    whole = isinstance(max_output_size, int | TensorType) and dtype in ("int32", "int64")
    fits = whole and not isinstance(max_output_size, bool)
    expected = "an int, or a tensor of int32 or int64"
    require(fits, "max_output_size must be an integer", expected=expected, found=max_output_size)
    if return_indices:
        return TensorType((batch, boxes), "int32"), TensorType((batch, 1), "int32")
    return data


def displacements(max_displacement: int, stride2: int) -> tuple[int, ...]:
    """Return the displacements of one axis, in steps of stride2 around 0."""
    radius = max_displacement // stride2
    return tuple(stride2 * d for d in range(-radius, radius + 1))


@op(axes=terms("x1=n x2=n -> n"))
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
    require_ndim(x1, 4, "x1")
    require_float(x1, "x1")
    require_same_dtype(x1, x2)
    fits = x1.shape == x2.shape or not (x1.is_static and x2.is_static)
    require(fits, "x1 and x2 differ in shape", found=f"x1={x1}, x2={x2}")
    fits = kernel_size >= 1 and kernel_size % 2 == 1
    require(fits, "kernel_size must be odd and positive", found=kernel_size)
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


@op(axes=terms("x1=n x2=n dy=n -> n"), options=correlation)
def correlation_dx(
    x1: Tensor, x2: Tensor, dy: Tensor, *options: Any
) -> tuple[TensorType, TensorType]:
    """Gradients of `correlation` with respect to x1 and x2; of |x1 - x2| it is 0 where they agree.

    dy: gradient of the result, of its type. All else as in the forward call.
    """
    y: TensorType = correlation.type_function(x1, x2, *options)
    require_like(dy, y, "dy is not of the forward result's type")
    return x1, x2
