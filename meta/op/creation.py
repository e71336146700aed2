"""Operators that create tensors.

Those without a tensor argument take ``device``, where the result is to live: "cpu" or "cuda:N".
"""

import math

from meta.base import dtype as dtypes
from meta.op.core import DeviceName, DType, Ints, Scalar, Tensor, TensorType, op
from meta.op.core.axes import new_axis
from meta.op.core.check import (
    extents_of,
    is_single_element,
    normalize_axis,
    require,
    require_representable,
    require_same_dtype,
)
from meta.op.core.indices import IndexRange
from meta.op.core.names import Names


def _filled(shape: Ints, dtype: str) -> TensorType:
    return TensorType(extents_of(shape), dtype)


@op(float8=True, names=Names("array_api"))
def zeros(shape: Ints, dtype: DType = "float32", device: DeviceName = "cpu") -> Tensor:
    """A tensor of zeros. shape: extents; an int is one axis. dtype, device: of the result.

    Raises TypeInferError for a negative extent.
    """
    return _filled(shape, dtype)


@op(like=zeros, float8=True, names=Names("array_api"))
def ones() -> None:
    """A tensor of ones. See `zeros`."""


@op(float8=True)
def full(
    shape: Ints, fill_value: Scalar, dtype: DType | None = None, device: DeviceName = "cpu"
) -> Tensor:
    """A tensor of ``fill_value``. See `zeros`.

    fill_value: a whole number in the range of an integer dtype, 0 or 1 for bool, else
    NumberOutOfRange is raised; rounded to a floating point dtype. No kernel is built per value.
    dtype: of the result; None is that of the number: bool, int64 or float32.
    """
    return _filled(shape, require_same_dtype(fill_value) if dtype is None else dtype)


def bounds(start: int | float, stop: int | float | None) -> tuple[int | float, int | float]:
    """Return where `arange` starts and stops: with one number it starts at 0."""
    return (0, start) if stop is None else (start, stop)


@op(names=Names("array_api"))
def arange(
    start: int | float,
    stop: int | float | None = None,
    step: int | float = 1,
    dtype: DType | None = None,
    device: DeviceName = "cpu",
) -> Tensor:
    """The numbers ``start + i * step`` for i = 0, 1, ... before ``stop``.

    ``arange(n)`` is ``arange(0, n)``. start, stop, step: Python numbers, because they decide the
    length, which is ``max(0, ceil((stop - start) / step))``. Values are computed in int64 if all
    three are ints, else in float64, then converted to ``dtype``, which may be any but bool; None is
    int64 if all three are ints, else float32. For an integer dtype, start and step are whole: NumPy
    and torch make different numbers of fractions.
    Result: shape (length,). Raises TypeInferError if step is 0 or a number is not finite or not
    whole, and NumberOutOfRange if ``dtype`` has not the first or the last number.
    """
    start, stop = bounds(start, stop)
    given = f"start={start}, stop={stop}, step={step}"
    if dtype is None:
        dtype = require_same_dtype(start, stop, step)
    require(
        all(map(math.isfinite, (start, stop, step))), "arange takes finite numbers", found=given
    )
    require(step != 0, "the step of arange is 0", found=given)
    whole = dtypes.is_real(dtype) or (start == int(start) and step == int(step))
    expected = f"a whole start and step, or a cast: meta.astype(meta.arange(...), {dtype!r})"
    require(whole, f"{dtype} counts in whole numbers", expected=expected, found=given)
    require(dtype != "bool", "arange counts, which bool cannot", expected="an int or float dtype")
    if isinstance(start, int) and isinstance(stop, int) and isinstance(step, int):
        length = -((start - stop) // step)  # exact where a float division is not
    else:
        quotient = (stop - start) / step
        require(math.isfinite(quotient), "arange has no end", found=given)
        length = math.ceil(quotient)
    if length > 0:
        whole = isinstance(start, int) and isinstance(step, int)
        for dtype_ in (dtype, "int64") if whole else (dtype,):
            require_representable(dtype_, start, "the first number")
            require_representable(dtype_, start + (length - 1) * step, "the last number")
    return TensorType((max(0, length),), dtype)


def _depth_range(depth: int, mode: str) -> tuple[IndexRange, ...]:
    return (IndexRange("indices", depth, "the new axis, depth"),) if mode == "raise" else ()


@op(axes=new_axis("indices"), indices=_depth_range)
def one_hot(
    indices: Tensor,
    depth: int,
    on_value: Scalar | Tensor = 1,
    off_value: Scalar | Tensor = 0,
    axis: int = -1,
    dtype: DType | None = None,
    device: DeviceName = "cpu",
    mode: str = "raise",
) -> Tensor:
    """``on_value`` where the position along a new axis is the index, ``off_value`` elsewhere.

    indices: any integer dtype. mode: what an index outside [0, depth) is: "raise", an
    IndexOutOfRange where indices are looked at (on the CPU), as torch's, or "ignore": it gives
    ``off_value`` everywhere, as on CUDA in any case.
    on_value, off_value: numbers, or tensors with one element; converted to ``dtype``.
    depth: length of the new axis. axis: its place in the result; -1 is last. dtype: None is that of
    the values: of tensors their own, of Python numbers int64, float32 or bool.
    device: not used, the result lives where ``indices`` does.
    Result: shape of indices with ``depth`` inserted at ``axis``.
    Raises TypeInferError for other indices or values, a negative depth, an axis out of range or
    another mode.
    """
    require(mode in ("raise", "ignore"), "unknown mode", expected="raise or ignore", found=mode)
    integers = not dtypes.is_float(indices.dtype) and indices.dtype != "bool"
    require(integers, "indices must be integers", found=str(indices))
    for name, value in (("on_value", on_value), ("off_value", off_value)):
        single = not isinstance(value, TensorType) or is_single_element(value)
        require(single, f"{name} must be one number", found=str(value))
    require(depth >= 0, "depth is negative", found=depth)
    place = normalize_axis(axis, indices.ndim + 1)
    if dtype is None:
        dtype = require_same_dtype(on_value, off_value)
    return TensorType((*indices.shape[:place], depth, *indices.shape[place:]), dtype)


@op(elementwise=True, float8=True, names=Names("relay"))
def zeros_like(x: Tensor, dtype: DType | None = None) -> Tensor:
    """A tensor of zeros of the shape and device of ``x``. dtype: None is that of ``x``."""
    return x if dtype is None else x.with_dtype(dtype)


@op(elementwise=True, like=zeros_like, float8=True, names=Names("relay"))
def ones_like() -> None:
    """A tensor of ones of the shape and device of ``x``. See `zeros_like`."""


@op(elementwise=True, float8=True)
def full_like(x: Tensor, fill_value: Scalar, dtype: DType | None = None) -> Tensor:
    """A tensor of ``fill_value`` of the shape and device of ``x``. See `full`, `zeros_like`."""
    return x if dtype is None else x.with_dtype(dtype)
