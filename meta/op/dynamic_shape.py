"""Operators that take extents, bounds and counts from tensors. Add one here.

Each is an operator of another family, whose name follows ``dynamic_``, with an attribute that is
known at run time only; so is the shape of the result, of which only the number of axes is known
before (``?``). What is wrong with the values is an error then, that of the other operator.
Programs in which they are known use that one.
"""

from __future__ import annotations

from meta.ir.types import UNKNOWN, Dim
from meta.op.core import DType, Scalar, Tensor, TensorType, op
from meta.op.core.axes import require_new_axes
from meta.op.core.check import fit, normalize_axis, require
from meta.op.core.same_dtype import require_same_dtype
from meta.op.init import one_hot
from meta.op.padding import pad
from meta.op.resize import resize2d
from meta.op.sorting import topk
from meta.op.transform import require_index


def _vector(x: Tensor, name: str) -> int:
    """Return the extent of a vector of integers, which has to be known."""
    require_index(x)
    extent = x.shape[0] if x.ndim == 1 else None
    if not isinstance(extent, int):
        require(False, f"{name} must be a vector of known extent", found=x)
    assert isinstance(extent, int)
    return extent


def _single(x: Tensor, name: str, *, integer: bool = True) -> None:
    """Raise TypeInferError unless a tensor has one element."""
    if integer:
        require_index(x)
    require(all(d == 1 for d in x.shape), f"{name} must have one element", found=x)


def _unknown(x: Tensor, axes: set[int]) -> Tensor:
    """Return the type of ``x`` with some extents unknown."""
    shape: list[Dim] = [UNKNOWN if i in axes else d for i, d in enumerate(x.shape)]
    return x.with_shape(tuple(shape))


@op
def dynamic_reshape(x: Tensor, shape: Tensor, allowzero: bool = False) -> Tensor:
    """`reshape` to the extents that ``shape``, a vector of integers, holds at run time.

    It may hold one -1 and, unless ``allowzero``, 0 for the extent of the same axis of x. A copy.
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
    require(
        slice_mode in ("end", "size"),
        "slice_mode is unknown",
        expected="'end' or 'size'",
        found=slice_mode,
    )
    return _unknown(x, set(range(counts[0])))


@op
def dynamic_strided_slice_dx(
    x: Tensor, dy: Tensor, begin: Tensor, end: Tensor, strides: Tensor, slice_mode: str = "end"
) -> Tensor:
    """The gradient of `dynamic_strided_slice` at ``x``, of which only the type counts: zeros, with
    ``dy`` where it reads.
    """
    part: Tensor = dynamic_strided_slice.type_function(x, begin, end, strides, slice_mode)
    require(
        fit(dy.shape, part.shape), "dy has another shape than the slice", expected=part, found=dy
    )
    require_same_dtype(x, dy)
    return x


@op
def dynamic_topk(
    data: Tensor,
    k: Tensor,
    axis: int = -1,
    ret_type: str = "both",
    is_ascend: bool = False,
    dtype: DType = "int64",
) -> Tensor | tuple[Tensor, Tensor]:
    """`topk` of ``k``, one integer of the run time; below 1 it stands for all."""
    _single(k, "k")
    at = normalize_axis(axis, data.ndim)
    found = topk.type_function(data, 0, axis, ret_type, is_ascend, dtype)
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
    found: Tensor = one_hot.type_function(indices, on_value, off_value, 0, axis, dtype, "cpu")
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


@op
def dynamic_resize2d(
    x: Tensor,
    size: Tensor,
    layout: str = "NCHW",
    method: str = "linear",
    coordinate_transformation_mode: str = "half_pixel",
    rounding_method: str = "",
    cubic_alpha: float = -0.5,
    cubic_exclude: int = 0,
    out_dtype: str = "",
) -> Tensor:
    """`resize2d` to ``size``, a vector of two integers: height and width."""
    count = _vector(size, "size")
    require(count == 2, "size must hold height and width", found=size)
    found: Tensor = resize2d.type_function(
        x, 1, layout, method, coordinate_transformation_mode, rounding_method, cubic_alpha,
        cubic_exclude, out_dtype,
    )  # fmt: skip
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
