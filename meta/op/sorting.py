"""Operators that order elements or find their place. Add one here.

Order is stable, ascending or descending: equal elements stay in the order of their indices. A NaN
counts as larger than all numbers, and both zeros are equal.

A program says more than a call does: the dtype of indices, and which result of `topk` it needs.

The file is not called `sort`: ``meta.op.sort`` is the operator."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from meta.base.errors import ArgumentError
from meta.ir.types import Dim
from meta.op.core import DType, Tensor, op
from meta.op.core.axes import Args, Axes, along, labels_of
from meta.op.core.check import normalize_axis, require, require_representable, require_same_dtype
from meta.op.core.function import as_operand
from meta.op.gathering import take
from meta.op.shapes import require_index


def _index_type(shape: Tensor, dtype: str, largest: Dim) -> Tensor:
    """Return the type of indices; ``largest``: the largest that there can be."""
    result = shape.with_dtype(dtype)
    require_index(result)
    if isinstance(largest, int):
        require_representable(dtype, max(largest, 0), "the largest index")
    return result


def _last(extent: Dim) -> Dim:
    return extent - 1 if isinstance(extent, int) else extent


@op(axes=along("x"), composed=True)
def argsort(x: Tensor, axis: int = -1, descending: bool = False, dtype: DType = "int64") -> Tensor:
    """The indices (int64) that sort ``x`` along ``axis``.

    ``x``: at least one axis; the result has its shape. ``descending``: from the largest, so that a
    NaN is first. ``stable`` says that equal elements keep their order: they always do. It is not
    differentiable. In a program, ``dtype`` is that of the indices. Raises NumberOutOfRange for one
    that has not all of them.
    """
    at = normalize_axis(axis, x.ndim)
    return _index_type(x, dtype, _last(x.shape[at]))


def _require_bool(value: Any, name: str, op: str) -> None:
    if not isinstance(value, bool):
        found = f"{value!r} ({type(value).__name__})"
        raise ArgumentError(f"{name} must be True or False", op=op, expected="bool", found=found)


@argsort.calls
def _argsort(x: Any, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    _require_bool(stable, "stable", "argsort")
    return argsort.plain(x, axis, descending)


@op(axes=along("x"), composed=True)
def sort(x: Tensor, axis: int = -1, descending: bool = False) -> Tensor:
    """``x`` sorted along ``axis``; the result has its type.

    ``descending``: from the largest, so that a NaN is first. ``stable``: see `argsort`. The
    gradient of an element goes to where the element was.
    """
    normalize_axis(axis, x.ndim)
    return x


@sort.calls
def _sort(x: Any, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    _require_bool(stable, "stable", "sort")
    return sort.plain(x, axis, descending)


@op(axes=along("x"), composed=True)
def topk(
    x: Tensor,
    k: int,
    axis: int = -1,
    largest: bool = True,
    ret_type: str = "both",
    dtype: DType = "int64",
) -> Tensor | tuple[Tensor, Tensor]:
    """The ``k`` largest elements along ``axis``, from the largest, and their indices (int64).

    ``k``: from 0 to the extent of the axis, which it replaces in the results. ``largest``: False
    gives the smallest, from the smallest. A NaN is the largest; of equal elements the first come
    first. ``sorted`` says that the elements are in order: they always are. Result: (values,
    indices). In a program, ``ret_type`` is "both", "values" or "indices", and ``dtype`` that of the
    indices. Raises TypeInferError for another ``k``, and NumberOutOfRange for a ``dtype`` that has
    not all indices of the axis.
    """
    at = normalize_axis(axis, x.ndim)
    extent = x.shape[at]
    fits = k >= 0 and not (isinstance(extent, int) and k > extent)
    require(fits, "k is out of range", expected=f"0 <= k <= {extent}", found=k)
    values = x.with_shape((*x.shape[:at], k, *x.shape[at + 1 :]))
    indices = _index_type(values, dtype, _last(extent))
    if ret_type == "both":
        return values, indices
    fits = ret_type in ("values", "indices")
    require(fits, "unknown ret_type", expected="both, values or indices", found=ret_type)
    return values if ret_type == "values" else indices


class TopK(NamedTuple):
    """Result of `topk`."""

    values: Any
    indices: Any


@topk.calls
def _topk(x: Any, k: int, axis: int = -1, largest: bool = True, sorted: bool = True) -> TopK:
    _require_bool(sorted, "sorted", "topk")
    return TopK(*topk.plain(x, k, axis, largest))


def _search_axes(args: Args) -> Iterable[Axes]:
    labels = labels_of(args["x2"].ndim)
    if args["x1"].ndim > 1:
        tensors = {"x1": (*labels[:-1], None), "x2": labels}
        return (Axes(tensors, (labels,), ("x1", "x2")),)
    return (Axes({"x1": (None,), "x2": labels}, (labels,), ("x2",)),)


@op(axes=_search_axes, composed=True)
def searchsorted(x1: Tensor, x2: Tensor, right: bool = False, dtype: DType = "int64") -> Tensor:
    """Where to insert ``x2`` so that the last axis of ``x1`` stays ascending: indices (int64) from
    0 to its extent.

    ``side``: "left" is before equal elements, "right" behind them. ``sorter``: a vector of indices
    that sorts ``x1``, a vector, if it is not sorted. ``x1``: a vector, or as many axes as ``x2``
    with equal extents but for the last; of the dtype of ``x2``. A NaN among ``x2`` belongs at the
    very end. Of a sequence that does not ascend, or holds a NaN, the result is in range but not
    specified. In a program ``right`` stands for the side, and ``dtype`` is that of the result.
    Raises NumberOutOfRange for one that has not the extent.
    """
    require_same_dtype(x1, x2)
    require(
        x1.ndim == 1 or (x1.ndim > 1 and x1.shape[:-1] == x2.shape[:-1]),
        "x1 does not fit x2",
        expected="a vector, or the extents of x2 but for the last",
        found=f"{x1} and {x2}",
    )
    require(x2.dtype != "bool", "bool cannot be searched", expected="a dtype of numbers")
    return _index_type(x2, dtype, x1.shape[-1])


SIDES = ("left", "right")


@searchsorted.calls
def _searchsorted(x1: Any, x2: Any, side: str = "left", sorter: Any = None) -> Any:
    if side not in SIDES:
        raise ArgumentError(
            "there is no such side",
            op="searchsorted",
            expected="'left' or 'right'",
            found=repr(side),
            hint='side="right" for right=True' if isinstance(side, bool) else None,
        )
    if sorter is not None:
        x1 = as_operand(x1)
        if x1.ndim != 1:
            raise ArgumentError(
                "a sorter sorts a vector",
                op="searchsorted",
                expected="x1 with one axis",
                found=f"shape {x1.shape}",
            )
        x1 = take(x1, sorter, 0)
    return searchsorted.plain(x1, x2, side == "right")
