"""Sums, means and maxima of rows of a table that several indices name, composed of operators."""

from __future__ import annotations

import math
from typing import Any

from meta import op
from meta.base.dtype import is_float
from meta.base.errors import TypeInferError
from meta.op.core.function import as_operand, function
from meta.op.loss_reduction import type_text

MODES = ("sum", "mean", "max")


def _error(what: str, **more: Any) -> TypeInferError:
    return TypeInferError(what, op="embedding_bag", **more)


@function
def embedding_bag(
    indices: Any,
    weight: Any,
    offsets: Any = None,
    *,
    mode: str = "mean",
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    """Return the sum, mean or maximum of the rows of a table in each bag of indices.

    indices: integers; (bags, n), or (count,) with offsets: (bags,) integers in ascending order from
    0, where each bag begins; the next one is its end. weight: the table, (rows, d), floating point.
    include_last_offset: the last offset is only an end, the number of indices. mode: "sum", "mean"
    or "max"; an empty bag gives zeros. per_sample_weights: factors of the rows, of the shape of
    indices and the dtype of weight, for the mode "sum". padding_idx: a row that counts in no bag
    and gets no gradient. Result: (bags, d). Equal maxima share their gradient. Raises
    TypeInferError for other types, and IndexOutOfRange for indices out of range and a first offset
    that is not 0 (on CUDA with META_CHECK_INDICES only). The arguments are torch's.

    >>> meta.embedding_bag(meta.array([[0, 2], [1, 1]]), meta.ones((3, 4))).shape
    (2, 4)
    """
    indices, weight = as_operand(indices), as_operand(weight)
    if is_float(indices.dtype) or not is_float(weight.dtype):
        raise _error(
            "indices must be integers, weight floating point",
            expected="embedding_bag(indices, weight)",
            found=f"{type_text(indices)} and {type_text(weight)}",
            hint="the indices come first, then the table, as in torch",
        )
    if mode not in MODES:
        raise _error("unknown mode", expected=", ".join(MODES), found=repr(mode))
    if weight.ndim != 2:
        raise _error("weight must be a table", expected="2 axes", found=repr(weight.shape))
    if indices.ndim != (2 if offsets is None else 1):
        expected = "2 axes, or 1 and offsets"
        raise _error("indices does not fit", expected=expected, found=repr(indices.shape))
    if per_sample_weights is not None:
        per_sample_weights = as_operand(per_sample_weights)
        if mode != "sum":
            raise _error("per_sample_weights are for the mode 'sum'", found=repr(mode))
        if per_sample_weights.shape != indices.shape:
            found = f"{per_sample_weights.shape} and {indices.shape}"
            raise _error("per_sample_weights has another shape than indices", found=found)
        per_sample_weights = op.reshape(per_sample_weights, (-1,))
    flat = op.reshape(indices, (-1,))
    rows = op.embedding(flat, weight, padding_idx)
    if offsets is None:
        bags, extent = indices.shape
        belongs = op.reshape(_positions(indices, 0), (-1,))
        marks = belongs if not extent else op.strided_slice(flat, (0,), (bags * extent,), (extent,))
        marks = marks if extent else op.sum(indices, 1)
    else:
        marks = as_operand(offsets)
        if marks.ndim != 1:
            raise _error("offsets must be a vector", found=repr(marks.shape))
        if include_last_offset:
            marks = op.strided_slice(marks, (0,), (marks.shape[0] - 1,))
        belongs = op.searchsorted(marks, op.astype(_positions(flat, 0), marks.dtype), "right") - 1
    kept = None if padding_idx is None else flat != padding_idx % weight.shape[0]
    return _reduced(rows, belongs, _zeros(marks, weight), mode, per_sample_weights, kept)


def _positions(x: Any, axis: int) -> Any:
    """Return the position of each element along an axis, on the device of x."""
    return op.cumsum(op.ones_like(op.astype(x, "int64")), axis, "int64") - 1


def _zeros(marks: Any, weight: Any) -> Any:
    """Return zeros with a row for each mark, on their device."""
    column = op.expand_dims(op.astype(op.zeros_like(marks), weight.dtype), 1)
    return op.broadcast_to(column, (marks.shape[0], weight.shape[1]))


def _reduced(rows: Any, belongs: Any, zeros: Any, mode: str, weights: Any, kept: Any) -> Any:
    """Return the rows of each bag reduced; ``kept``: which of them count, None if all do."""
    index = op.broadcast_to(op.expand_dims(belongs, 1), rows.shape)
    counted = op.ones_like(rows)
    if kept is not None:
        kept = op.expand_dims(kept, 1)
        counted = op.where(kept, counted, 0.0)
    if mode == "max":
        counts = op.scatter_add(zeros, 0, index, counted)
        low = rows if kept is None else op.where(kept, rows, -math.inf)
        found = op.scatter_reduce(op.full_like(zeros, -math.inf), 0, index, low, "amax")
        return op.where(counts == 0, 0.0, found)
    if weights is not None:
        rows = rows * op.expand_dims(weights, 1)
    if kept is not None:
        rows = op.where(kept, rows, 0.0)
    total = op.scatter_add(zeros, 0, index, rows)
    if mode == "sum":
        return total
    return total / op.maximum(op.scatter_add(zeros, 0, index, counted), 1.0)
