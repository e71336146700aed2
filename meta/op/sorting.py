"""Operators that order elements or find their place. Add one here.

Order is stable, ascending or descending: equal elements stay in the order of their indices. A NaN
counts as larger than all numbers, and both zeros are equal.

The file is not called `sort`: ``meta.op.sort`` is the operator."""

from meta.ir.types import Dim
from meta.op.core import DType, Tensor, op
from meta.op.core.check import normalize_axis, require, require_holds, require_same_dtype
from meta.op.shapes import require_index


def _index_type(shape: Tensor, dtype: str, largest: Dim) -> Tensor:
    """Return the type of indices; ``largest``: the largest that there can be."""
    result = shape.with_dtype(dtype)
    require_index(result)
    if isinstance(largest, int):
        require_holds(dtype, max(largest, 0), "the largest index")
    return result


def _last(extent: Dim) -> Dim:
    return extent - 1 if isinstance(extent, int) else extent


@op
def argsort(data: Tensor, axis: int = -1, is_ascend: bool = True, dtype: DType = "int64") -> Tensor:
    """The indices that sort ``data`` along ``axis``, as integers of ``dtype``.

    ``data``: at least one axis. The result has its shape. It is not differentiable. Raises
    NumberOutOfRange for a ``dtype`` that has not all of the indices.
    """
    at = normalize_axis(axis, data.ndim)
    return _index_type(data, dtype, _last(data.shape[at]))


@op
def sort(data: Tensor, axis: int = -1, is_ascend: bool = True) -> Tensor:
    """``data`` sorted along ``axis``; the result has its type.

    The gradient of an element goes to where the element was; among equal ones the order is stable.
    """
    normalize_axis(axis, data.ndim)
    return data


@op
def topk(
    data: Tensor,
    k: int,
    axis: int = -1,
    ret_type: str = "both",
    is_ascend: bool = False,
    dtype: DType = "int64",
) -> Tensor | tuple[Tensor, Tensor]:
    """The first ``k`` elements in descending order along ``axis``, and their indices.

    ``k``: from 0 to the extent of the axis, which it replaces in the results. ``is_ascend``: the
    smallest, in ascending order. ``ret_type``: "both" gives (values, indices), "values" or
    "indices" one of them. ``dtype``: of the indices. Raises TypeInferError for another ``k``, and
    NumberOutOfRange for a ``dtype`` that has not all indices of the axis.
    """
    at = normalize_axis(axis, data.ndim)
    extent = data.shape[at]
    fits = k >= 0 and not (isinstance(extent, int) and k > extent)
    require(fits, "k is out of range", expected=f"0 <= k <= {extent}", found=k)
    values = data.with_shape((*data.shape[:at], k, *data.shape[at + 1 :]))
    indices = _index_type(values, dtype, _last(extent))
    if ret_type == "both":
        return values, indices
    fits = ret_type in ("values", "indices")
    require(fits, "unknown ret_type", expected="both, values or indices", found=ret_type)
    return values if ret_type == "values" else indices


@op
def searchsorted(
    sorted_sequence: Tensor, values: Tensor, right: bool = False, dtype: DType = "int64"
) -> Tensor:
    """Where to insert ``values`` so that the last axis of ``sorted_sequence`` stays ascending.

    That is before equal elements, or behind them if ``right``; an integer of ``dtype`` from 0 to
    the extent. ``sorted_sequence``: a vector, or as many axes as ``values`` with equal extents but
    for the last; of the dtype of ``values``. A NaN among ``values`` belongs at the very end. Of a
    sequence that does not ascend, or holds a NaN, the result is in range but not specified. Raises
    NumberOutOfRange for a ``dtype`` that has not the extent.
    """
    require_same_dtype(sorted_sequence, values)
    require(
        sorted_sequence.ndim == 1
        or (sorted_sequence.ndim > 1 and sorted_sequence.shape[:-1] == values.shape[:-1]),
        "sorted_sequence does not fit values",
        expected="a vector, or the extents of values but for the last",
        found=f"{sorted_sequence} and {values}",
    )
    require(values.dtype != "bool", "bool cannot be searched", expected="a dtype of numbers")
    return _index_type(values, dtype, sorted_sequence.shape[-1])
