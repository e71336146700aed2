"""Operators whose result's shape depends on data.

The type function gives such a dimension as unknown (``?``); a kernel returns tensors of its own,
and an eager call or the interpreter takes the sizes from them. On a GPU a call waits for the count.
An ``upper_bound_`` operator returns an array of the largest possible size, and the actual size.

A ``dynamic_`` operator is the operator of that name with an attribute that is known at run time
only. Of its result's shape only the number of dimensions is known before. Wrong values raise the
other operator's error at run time. Where the values are known, use the other operator.
"""

from __future__ import annotations

from math import prod
from typing import Any

from meta.base.errors import TypeInferError
from meta.ir.types import UNKNOWN, Dim
from meta.op.core import DType, Scalar, Tensor, TensorType, op
from meta.op.core.check import (
    is_single_element,
    normalize_axis,
    require,
    require_new_axes,
    require_same_dtype,
    shapes_compatible,
)
from meta.op.core.names import Names
from meta.op.creation import one_hot
from meta.op.movement import pad
from meta.op.resize import resize2d
from meta.op.shapes import require_index
from meta.op.sorting import topk


@op(complex=True)
def argwhere(condition: Tensor) -> Tensor:
    """The indices of the elements that are not 0, in row-major order: int64[?, ndim].

    ``condition``: any shape and dtype; a NaN is not 0.
    """
    return TensorType((UNKNOWN, condition.ndim), "int64")


@op
def upper_bound_argwhere(condition: Tensor) -> tuple[Tensor, Tensor]:
    """`argwhere` without waiting for the count: (indices int64[size, ndim], shape int64[2]).

    ``shape`` is what `argwhere` has; the rows of ``indices`` behind its first extent are -1.
    ``condition``: any known shape and any dtype.
    """
    require(condition.is_static, "condition must have known extents", found=str(condition))
    size = prod(condition.static_shape)
    return TensorType((size, condition.ndim), "int64"), TensorType((2,), "int64")


@op(complex=True, names=Names("array_api"))
def nonzero(x: Tensor) -> tuple[Tensor, ...]:
    """The columns of `argwhere` as a tuple: one vector of int64 per axis, all of one length.

    TypeInferError if ``x`` has no axis.
    """
    require(x.ndim >= 1, "x has no axis", expected="ndim 1 or more; see argwhere", found=x)
    return (TensorType((UNKNOWN,), "int64"),) * x.ndim


@op(complex=True)
def unique(
    x: Tensor, return_inverse: bool = False, return_counts: bool = False
) -> Tensor | tuple[Tensor, ...]:
    """The distinct elements of ``x``, ascending: a vector of its dtype.

    With ``return_inverse`` also, in the shape of ``x``, the place of every element among them; with
    ``return_counts`` also how often each occurs (both int64; the result is a tuple then, in this
    order). Every NaN is distinct, and last. Complex numbers are in the order of their real parts,
    then of their imaginary ones.
    """
    vector = TensorType((UNKNOWN,), x.dtype)
    results = [vector]
    if return_inverse:
        results.append(x.with_dtype("int64"))
    if return_counts:
        results.append(vector.with_dtype("int64"))
    return tuple(results) if len(results) > 1 else vector


@op
def sparse_fill_empty_rows(
    indices: Tensor, values: Tensor, shape: Tensor, default: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """A sparse tensor with an entry in every row: (indices, values, which rows had none).

    indices: [entries, axes], integers, the coordinates of ``values`` [entries]; the first is the
    row. shape: a vector of integers, the extents of the whole. default: a scalar of the dtype of
    values, which a row without an entry gets at its beginning. Entries come in the order of their
    rows, those of one row in their own; IndexOutOfRange for a row that is none. The last
    result is bool, an element for each row. TypeInferError for other types.
    """
    fits = indices.ndim == 2 and values.ndim == 1 and shape.ndim == 1 and default.ndim == 0
    found = f"indices={indices}, values={values}, shape={shape}, default={default}"
    require(fits, "the arguments are no sparse tensor", expected="ndim 2, 1, 1 and 0", found=found)
    require_index(indices)
    require_index(shape)
    require_same_dtype(values, default)
    entries = TensorType((UNKNOWN, indices.shape[1]), indices.dtype)
    return entries, TensorType((UNKNOWN,), values.dtype), TensorType((UNKNOWN,), "bool")


def _vector(x: Tensor, name: str) -> int:
    """Return the extent of a vector of integers, which has to be known."""
    require_index(x)
    extent = x.shape[0] if x.ndim == 1 else None
    if not isinstance(extent, int):
        raise TypeInferError(f"{name} must be a vector of known extent", found=x)
    return extent


def _single(x: Tensor, name: str, *, integer: bool = True) -> None:
    """Raise TypeInferError unless a tensor has one element."""
    if integer:
        require_index(x)
    require(is_single_element(x), f"{name} must have one element", found=x)


def _unknown(x: Tensor, axes: set[int]) -> Tensor:
    """Return the type of ``x`` with some extents unknown."""
    shape: list[Dim] = [UNKNOWN if i in axes else d for i, d in enumerate(x.shape)]
    return x.with_shape(tuple(shape))


@op
def dynamic_reshape(x: Tensor, shape: Tensor) -> Tensor:
    """`reshape` to the extents that ``shape``, a vector of integers, holds at run time.

    One of them may be -1. A copy.
    """
    return x.with_shape((UNKNOWN,) * _vector(shape, "shape"))


@op
def dynamic_broadcast_to(x: Tensor, shape: Tensor) -> Tensor:
    """`broadcast_to` the extents that ``shape``, a vector of integers, holds at run time."""
    return x.with_shape((UNKNOWN,) * _vector(shape, "shape"))


@op
def dynamic_full(fill_value: Tensor, shape: Tensor, dtype: DType) -> Tensor:
    """A tensor of ``fill_value``, one element, converted to ``dtype``; its extents are in
    ``shape``, a vector of integers.
    """
    _single(fill_value, "fill_value", integer=False)
    return TensorType((UNKNOWN,) * _vector(shape, "shape"), dtype)


@op
def dynamic_arange(start: Tensor, stop: Tensor, step: Tensor, dtype: DType) -> Tensor:
    """`arange` of three tensors of one element each, of integers or floats."""
    for value, name in ((start, "start"), (stop, "stop"), (step, "step")):
        _single(value, name, integer=False)
    require(dtype != "bool", "arange counts, which bool cannot", expected="an int or float dtype")
    return TensorType((UNKNOWN,), dtype)


@op
def dynamic_strided_slice(
    x: Tensor, begin: Tensor, end: Tensor, strides: Tensor, slice_mode: str = "end"
) -> Tensor:
    """`strided_slice` with bounds and strides of the run time: vectors of integers, one entry for
    each of the leading axes.
    """
    counts = [_vector(v, n) for v, n in ((begin, "begin"), (end, "end"), (strides, "strides"))]
    require(
        len(set(counts)) == 1 and counts[0] <= x.ndim,
        "begin, end and strides must have one entry for each of the leading axes",
        expected=f"vectors of one extent, at most {x.ndim}",
        found=f"extents {counts}",
    )
    fits = slice_mode in ("end", "size")
    require(fits, "slice_mode is unknown", expected="'end' or 'size'", found=slice_mode)
    return _unknown(x, set(range(counts[0])))


@op(options=dynamic_strided_slice)
def dynamic_strided_slice_dx(
    x: Tensor, dy: Tensor, begin: Tensor, end: Tensor, strides: Tensor, *options: Any
) -> Tensor:
    """The gradient of `dynamic_strided_slice` at ``x``, of which only the type counts: zeros, with
    ``dy`` where it reads.
    """
    part: Tensor = dynamic_strided_slice.type_function(x, begin, end, strides, *options)
    fits = shapes_compatible(dy.shape, part.shape)
    require(fits, "dy has another shape than the slice", expected=part, found=dy)
    require_same_dtype(x, dy)
    return x


@op(options=topk)
def dynamic_topk(x: Tensor, k: Tensor, *options: Any) -> Tensor | tuple[Tensor, Tensor]:
    """`topk` of ``k``, one integer of the run time; below 1 it stands for all."""
    _single(k, "k")
    at = normalize_axis(options[0], x.ndim)
    found = topk.type_function(x, 0, *options)
    if isinstance(found, tuple):
        return _unknown(found[0], {at}), _unknown(found[1], {at})
    return _unknown(found, {at})


@op
def dynamic_one_hot(
    indices: Tensor,
    on_value: Scalar | Tensor,
    off_value: Scalar | Tensor,
    depth: Tensor,
    axis: int = -1,
    dtype: DType = "int32",
) -> Tensor:
    """`one_hot` of ``depth``, one integer of the run time."""
    _single(depth, "depth")
    found: Tensor = one_hot.type_function(indices, 0, on_value, off_value, axis, dtype, "cpu")
    return _unknown(found, {normalize_axis(axis, found.ndim)})


@op
def dynamic_tile(x: Tensor, reps: Tensor) -> Tensor:
    """`tile` by ``reps``, a vector of integers."""
    return x.with_shape((UNKNOWN,) * max(x.ndim, _vector(reps, "reps")))


@op
def dynamic_pad(
    x: Tensor, pad_width: Tensor, pad_value: Scalar | Tensor = 0.0, pad_mode: str = "constant"
) -> Tensor:
    """`pad` by ``pad_width``, integers [ndim, 2]; ``pad_value`` may be a tensor of one element."""
    require_index(pad_width)
    require(
        pad_width.shape == (x.ndim, 2),
        "pad_width must say what is before and after every axis",
        expected=f"shape [{x.ndim}, 2]",
        found=pad_width,
    )
    if isinstance(pad_value, TensorType):
        _single(pad_value, "pad_value", integer=False)
    pad.type_function(x, 0, 0, pad_mode)
    return _unknown(x, set(range(x.ndim)))


@op(options=resize2d)
def dynamic_resize2d(x: Tensor, size: Tensor, *options: Any) -> Tensor:
    """`resize2d` to ``size``, a vector of two integers: height and width."""
    count = _vector(size, "size")
    require(count == 2, "size must hold height and width", found=size)
    found: Tensor = resize2d.type_function(x, 1, *options)
    layout = options[0]
    return _unknown(found, {layout.index("H"), layout.index("W")})


@op
def dynamic_squeeze(x: Tensor, axes: Tensor) -> Tensor:
    """`squeeze` of the axes that ``axes``, a vector of distinct integers, names. A copy."""
    count = _vector(axes, "axes")
    require(count <= x.ndim, "more axes are named than there are", found=axes)
    return x.with_shape((UNKNOWN,) * (x.ndim - count))


@op
def dynamic_expand_dims(x: Tensor, axis: Tensor, num_newaxis: int = 1) -> Tensor:
    """`expand_dims` before ``axis``, one integer; below 0 it counts from behind. A copy."""
    _single(axis, "axis")
    require_new_axes(num_newaxis)
    return x.with_shape((UNKNOWN,) * (x.ndim + num_newaxis))
