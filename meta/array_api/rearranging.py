"""Functions that join, reorder and pick elements, by the Array API standard."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.op.core.check import normalize_axis
from meta.op.core.function import as_operand

Array = Any
"""An array, or a traced one."""


def reshape(x: Array, /, shape: tuple[int, ...], *, copy: bool | None = None) -> Array:
    """Return the elements of ``x`` in row-major order in another shape; see `meta.reshape`.

    >>> meta.array_api.reshape(meta.array([1, 2, 3, 4]), (2, -1)).tolist()
    [[1, 2], [3, 4]]
    """
    return op.reshape(x, shape, copy)


def repeat(x: Array, repeats: int | Array, /, *, axis: int | None = None) -> Array:
    """Return every element ``repeats`` times in a row along ``axis``; None flattens ``x`` first.

    repeats: a number, or a vector of one for each element along the axis, which is read now.

    >>> meta.array_api.repeat(meta.array([1, 2, 3]), meta.array([2, 0, 1])).tolist()
    [1, 1, 3]
    """
    x = as_operand(x)
    if isinstance(repeats, int):
        return op.repeat(x, repeats, axis)
    counts = as_operand(repeats)
    x, at = (op.reshape(x, (-1,)), 0) if axis is None else (x, normalize_axis(axis, x.ndim))
    counts = op.broadcast_to(counts, (x.shape[at],))
    ends = op.cumsum(op.astype(counts, "int64"), 0)
    total = int(ends[-1]) if x.shape[at] else 0
    if total == 0:
        return x[(*(slice(None),) * at, slice(0, 0))]
    # Element i of the result is the first whose repetitions end behind i.
    return op.take(x, op.searchsorted(ends, op.arange(total), side="right"), at)


def take_along_axis(x: Array, indices: Array, /, *, axis: int = -1) -> Array:
    """Return, along ``axis``, the elements that ``indices`` name; see `meta.take_along_axis`.

    >>> x = meta.array([[3, 1], [2, 4]])
    >>> meta.array_api.take_along_axis(x, meta.array_api.argsort(x, axis=1), axis=1).tolist()
    [[1, 3], [2, 4]]
    """
    return op.take_along_axis(x, indices, axis)
