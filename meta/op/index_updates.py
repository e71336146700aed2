"""Functions that write at indices and masks, composed of operators. Each returns a new array.

An index that is named twice counts twice where elements are reduced; where they are written, one of
them is, which is not specified.
"""

from __future__ import annotations

from typing import Any

from meta import op
from meta.base.dtype import is_float
from meta.base.dtype_info import iinfo
from meta.base.errors import TypeInferError
from meta.op.core.check import broadcast_shapes, normalize_axis
from meta.op.core.function import as_operand, function
from meta.op.gathering import REDUCTIONS, scatter_reduce
from meta.op.loss_reduction import in_compute_dtype, type_text

ALL_REDUCTIONS = ("sum", "mean", *REDUCTIONS)


def _error(name: str, what: str, **more: Any) -> TypeInferError:
    return TypeInferError(what, op=name, **more)


@scatter_reduce.calls
def _scatter_reduce(
    x: Any, axis: int, index: Any, src: Any, reduce: str, include_self: bool = True
) -> Any:
    x, index, src = as_operand(x), as_operand(index), as_operand(src)
    if reduce not in ALL_REDUCTIONS:
        expected = ", ".join(ALL_REDUCTIONS)
        raise _error("scatter_reduce", "unknown reduction", expected=expected, found=repr(reduce))
    if x.dtype == "bool" and reduce in ("sum", "mean"):
        raise _error("scatter_reduce", "bool has no order", expected="a dtype of numbers")
    if reduce in REDUCTIONS:
        start = x if include_self else _without_self(x, axis, index, src, reduce)
        return scatter_reduce.plain(start, axis, index, src, reduce)
    if reduce == "sum":
        start = x if include_self else op.scatter(x, axis, index, 0)
        return op.scatter_add(start, axis, index, src)
    dtype = x.dtype
    x, src = in_compute_dtype(x), in_compute_dtype(src)
    start = x if include_self else op.scatter(x, axis, index, 0)
    total = op.scatter_add(start, axis, index, src)
    # Places that nothing is written to are divided by 1.
    counts = op.full_like(x, 1 if include_self else 0, "int64")
    counts = op.scatter_add(counts, axis, index, op.full_like(index, 1, "int64"))
    counts = op.astype(op.maximum(counts, 1), total.dtype)
    mean = op.divide(total, counts) if is_float(dtype) else op.floor_divide(total, counts)
    return mean if mean.dtype == dtype else op.astype(mean, dtype)


def _without_self(x: Any, axis: int, index: Any, src: Any, reduce: str) -> Any:
    """Return x with what a reduction starts with, where an element of src is."""
    if reduce == "prod":
        return op.scatter(x, axis, index, 1)
    if is_float(x.dtype):
        return op.scatter(x, axis, index, float("-inf") if reduce == "amax" else float("inf"))
    if reduce == "amax":
        return op.scatter(x, axis, index, iinfo(x.dtype).min)
    if x.dtype == "uint64":  # whose largest number is no argument
        return op.scatter(x, axis, index, op.bitwise_invert(op.full_like(src, 0)))
    return op.scatter(x, axis, index, iinfo(x.dtype).max)


def _fitting(name: str, x: Any, axis: int, index: Any, source: Any) -> int:
    """Return the axis from the start; TypeInferError where slices do not fit."""
    at = normalize_axis(axis, x.ndim)
    if index.ndim != 1:
        raise _error(name, "index must be a vector", expected="1 axis", found=type_text(index))
    slices = (*x.shape[:at], index.shape[0], *x.shape[at + 1 :])
    if source is not None and (source.shape != slices or source.dtype != x.dtype):
        expected = f"{x.dtype}{list(slices)}"
        raise _error(name, "source does not fit", expected=expected, found=type_text(source))
    return at


def _along(name: str, x: Any, axis: int, index: Any, source: Any = None) -> tuple[Any, int, Any]:
    """Return x, the axis from the start, and indices from the start for each element of slices."""
    x, index = as_operand(x), as_operand(index)
    at = _fitting(name, x, axis, index, source)
    slices = (*x.shape[:at], index.shape[0], *x.shape[at + 1 :])
    places = _from_start(index, x.shape[at])
    column = op.reshape(places, (index.shape[0], *(1,) * (x.ndim - 1 - at)))
    return x, at, op.broadcast_to(column, slices)


def _from_start(index: Any, extent: Any) -> Any:
    index = op.astype(index, "int64")
    return op.where(op.less(index, 0), op.add(index, extent), index)


@function
def index_add(x: Any, axis: int, index: Any, source: Any, alpha: float = 1) -> Any:
    """Return ``x`` with ``alpha`` times the slices of ``source`` added to those along ``axis`` that
    ``index`` names.

    Of booleans the sum is "or", and an ``alpha`` of 0 leaves x as it is.

    index: a vector of integers; negative ones count from the end. source: the dtype of x and its
    shape, but that axis as long as the index. Slices of equal indices are added up. Raises
    TypeInferError if they do not fit, or x is of integers and alpha is none, and IndexOutOfRange as
    `index_select`.

    >>> meta.index_add(meta.zeros(3), 0, meta.array([0, 2, 2]), meta.ones(3)).tolist()
    [1.0, 0.0, 2.0]
    """
    x, index, source = as_operand(x), as_operand(index), as_operand(source)
    at = _fitting("index_add", x, axis, index, source)
    if x.dtype == "bool":
        source = source if alpha else op.full_like(source, 0)
        return op.scatter_add(x, at, _along("index_add", x, axis, index, source)[2], source)
    if isinstance(alpha, float) and not is_float(x.dtype) and not x.dtype.startswith("complex"):
        if not alpha.is_integer():
            raise _error(
                "index_add",
                "a multiple of integers that is no integer",
                expected=f"an integer alpha for x of {x.dtype}",
                found=repr(alpha),
                hint="cast x and source to floating point first",
            )
        alpha = int(alpha)
    return op.add(x, op.take_dx(x, source if alpha == 1 else source * alpha, index, at))


@function
def index_copy(x: Any, axis: int, index: Any, source: Any) -> Any:
    """Return ``x`` with the slices of ``source`` in the place of those along ``axis`` that
    ``index`` names. Arguments and errors are those of `index_add`.

    >>> meta.index_copy(meta.zeros(3), 0, meta.array([1]), meta.ones(1)).tolist()
    [0.0, 1.0, 0.0]
    """
    source = as_operand(source)
    x, at, places = _along("index_copy", x, axis, index, source)
    return op.scatter(x, at, places, source)


@function
def index_reduce(
    x: Any, axis: int, index: Any, source: Any, reduce: str, include_self: bool = True
) -> Any:
    """Return ``x`` with the slices along ``axis`` that ``index`` names reduced with those of
    ``source``. Reductions are those of `scatter_reduce`, other arguments those of `index_add`.

    >>> source = meta.array([[1.0, 9.0], [5.0, 2.0]])
    >>> meta.index_reduce(meta.zeros((2, 2)), 0, meta.array([1, 1]), source, "amax").tolist()
    [[0.0, 0.0], [5.0, 9.0]]
    """
    source = as_operand(source)
    x, at, places = _along("index_reduce", x, axis, index, source)
    return op.scatter_reduce(x, at, places, source, reduce, include_self)


@function
def index_fill(x: Any, axis: int, index: Any, value: Any) -> Any:
    """Return ``x`` with ``value``, a number or a 0-d array, in the slices along ``axis`` that
    ``index`` names. Other arguments and errors are those of `index_add`.

    >>> meta.index_fill(meta.zeros(3), 0, meta.array([1]), 5.0).tolist()
    [0.0, 5.0, 0.0]
    """
    x = as_operand(x)
    if not isinstance(value, bool | int | float) and as_operand(value).ndim != 0:
        found = type_text(as_operand(value))
        raise _error("index_fill", "value is no number", expected="a number", found=found)
    x, at, places = _along("index_fill", x, axis, index)
    chosen = op.scatter(op.full_like(x, 0, "bool"), at, places, True)
    return op.where(chosen, value, x)


@function
def put_along_axis(x: Any, indices: Any, values: Any, axis: int = -1) -> Any:
    """Return ``x`` with ``values`` in the places along ``axis`` that `take_along_axis` would read.

    indices: integers with as many axes as x; but for ``axis`` they are broadcast to those of x.
    Negative ones count from the end. values: a number, or what is broadcast to the indices, of the
    dtype of x. Raises TypeInferError if they do not fit, and IndexOutOfRange as `take_along_axis`.

    >>> meta.put_along_axis(meta.zeros((2, 2)), meta.array([[0], [1]]), 5.0, 1).tolist()
    [[5.0, 0.0], [0.0, 5.0]]
    """
    x, indices = as_operand(x), as_operand(indices)
    if indices.ndim != x.ndim:
        found = type_text(indices)
        what = "the indices do not fit x"
        raise _error("put_along_axis", what, expected=f"{x.ndim} axes", found=found)
    at = normalize_axis(axis, x.ndim)
    shape = (*x.shape[:at], indices.shape[at], *x.shape[at + 1 :])
    places = op.broadcast_to(_from_start(indices, x.shape[at]), shape)
    if not isinstance(values, bool | int | float):
        values = op.broadcast_to(as_operand(values), shape)
    return op.scatter(x, at, places, values)


@function
def masked_scatter(x: Any, mask: Any, source: Any) -> Any:
    """Return ``x`` with the elements of ``source``, one after the other, where ``mask`` is true.

    mask: bool, broadcast with x. source: any shape, the dtype of x, at least one element. Raises
    IndexOutOfRange if it has fewer elements than there are places: on CUDA with META_CHECK_INDICES
    only; without it its last element is repeated.

    >>> mask = meta.array([True, False, True])
    >>> meta.masked_scatter(meta.zeros(3), mask, meta.array([7.0, 8.0, 9.0])).tolist()
    [7.0, 0.0, 8.0]
    """
    x, mask, source = as_operand(x), as_operand(mask), as_operand(source)
    if mask.dtype != "bool":
        found = type_text(mask)
        raise _error("masked_scatter", "mask must be bool", expected="bool", found=found)
    if source.dtype != x.dtype:
        found = f"{type_text(x)} and {type_text(source)}"
        raise _error("masked_scatter", "x and source differ in dtype", found=found)
    shape = broadcast_shapes(x.shape, mask.shape)
    x, mask = op.broadcast_to(x, shape), op.broadcast_to(mask, shape)
    order = op.cumsum(op.astype(op.reshape(mask, (-1,)), "int64"), 0)
    places = op.maximum(order - 1, 0)
    taken = op.take(op.reshape(source, (-1,)), op.reshape(places, shape), 0)
    return op.where(mask, taken, x)


@function
def masked_select(x: Any, mask: Any) -> Any:
    """Return the elements of ``x`` where ``mask``, bool, is true, as a vector.

    Both are broadcast. The extent depends on the data, as of `argwhere`.

    >>> meta.masked_select(meta.array([1, 2, 3]), meta.array([True, False, True])).tolist()
    [1, 3]
    """
    x, mask = as_operand(x), as_operand(mask)
    if mask.dtype != "bool":
        found = type_text(mask)
        raise _error("masked_select", "mask must be bool", expected="bool", found=found)
    shape = broadcast_shapes(x.shape, mask.shape)
    flat = op.reshape(op.broadcast_to(x, shape), (-1,))
    where = op.reshape(op.broadcast_to(mask, shape), (-1,))
    return op.take(flat, op.reshape(op.argwhere(where), (-1,)), 0)
