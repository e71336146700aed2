"""Checks and shape arithmetic for type functions. Each raises TypeInferError with what was expected
and found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

from meta.base import dtype as dtypes
from meta.base.dtype import COMPLEX, bits, is_real, promote
from meta.base.errors import IndexOutOfRange, TypeInferError
from meta.base.number import MAX_AXES, MAX_BYTES, MAX_RESULTS, fits, out_of_range, suggest_dtype
from meta.ir.types import Dim, TensorType, UnknownDim


def require(condition: bool, what: str, *, expected: object = None, found: object = None) -> None:
    """Raise TypeInferError(what) unless ``condition`` holds."""
    if not condition:
        raise TypeInferError(what, expected=expected, found=found)


def require_representable(dtype: str, value: int | float, what: str) -> None:
    """Raise NumberOutOfRange unless a dtype has a number, whose fraction is dropped."""
    if math.isfinite(value) and not fits(math.trunc(value), dtype):
        raise out_of_range(value, dtype, what, hint=f'dtype="{suggest_dtype(math.trunc(value))}"')


def normalize_axis(axis: int, ndim: int) -> int:
    """Return ``axis`` in [0, ndim); a negative one counts from the end."""
    if not -ndim <= axis < ndim:
        expected = f"-{ndim} <= axis < {ndim}" if ndim else "a tensor with at least one axis"
        raise IndexOutOfRange(f"axis {axis} is out of range for ndim {ndim}", expected=expected)
    return axis % ndim


def normalize_axes(
    axis: int | Sequence[int] | None, ndim: int, exclude: bool = False
) -> tuple[int, ...]:
    """Return sorted distinct axes: of None all, with ``exclude`` all but those given."""
    if axis is None:
        require(
            not exclude,
            "exclude reduces the axes that are not named, and none is",
            expected="axis: an int or several, which stay",
            found="axis=None",
        )
        return tuple(range(ndim))
    given = (axis,) if isinstance(axis, int) else tuple(axis)
    axes = [normalize_axis(a, ndim) for a in given]
    if len(set(axes)) != len(axes):
        raise TypeInferError("an axis is named twice", found=given)
    chosen = set(range(ndim)) - set(axes) if exclude else set(axes)
    return tuple(sorted(chosen))


def broadcast_shapes(*shapes: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """Return the common shape under numpy's rules.

    An unknown extent beside one that is known and not 1 is taken to fit: it can only be that or 1.
    """
    ndim = max((len(s) for s in shapes), default=0)
    result: list[Dim] = []
    for i in range(ndim):
        dims = [s[i - ndim + len(s)] for s in shapes if i >= ndim - len(s)]
        wide = [d for d in dims if d != 1]
        told = [d for d in wide if not isinstance(d, UnknownDim)]
        if any(d != told[0] for d in told[1:]):
            raise TypeInferError(
                "shapes cannot be broadcast together",
                expected="equal extents, or 1, counted from the last axis",
                found=" and ".join(str(list(s)) for s in shapes),
            )
        result.append((told or wide or [1])[0])
    return tuple(result)


def shapes_compatible(found: Sequence[Dim], expected: Sequence[Dim]) -> bool:
    """Whether two shapes may be equal: as many extents, equal where both are known."""
    return len(found) == len(expected) and all(
        a == b or isinstance(a, UnknownDim) or isinstance(b, UnknownDim)
        for a, b in zip(found, expected, strict=True)
    )


def require_like(found: TensorType, expected: TensorType, what: str) -> None:
    """Raise TypeInferError(what) unless a type is another one, as far as both are known."""
    fits = found == expected or not (found.is_static and expected.is_static)
    require(fits, what, expected=expected, found=found)


def require_shape(found: TensorType, expected: TensorType, what: str) -> None:
    """Raise TypeInferError(what) unless a tensor has the shape of another type."""
    require(found.shape == expected.shape, what, expected=expected, found=found)


def extents_of(shape: int | tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the extents of a shape, an int being one axis; TypeInferError for a negative one."""
    extents = (shape,) if isinstance(shape, int) else shape
    negative = any(isinstance(d, int) and d < 0 for d in extents)
    require(not negative, "a shape has no negative extents", found=list(extents))
    return extents


def is_single_element(x: TensorType) -> bool:
    """Whether a tensor has one element."""
    return all(d == 1 for d in x.shape)


def shape_of(operand: Any) -> tuple[Dim, ...]:
    """Return a tensor's shape, () for a Python number."""
    return operand.shape if isinstance(operand, TensorType) else ()


def require_float(x: TensorType, name: str) -> None:
    """Raise TypeInferError unless the tensor holds floating point numbers."""
    if not dtypes.is_float(x.dtype):
        raise TypeInferError(
            f"{name} must be floating point", found=str(x), expected="float16 to float64"
        )


def require_gradient(x: TensorType, name: str) -> None:
    """Raise TypeInferError unless the tensor holds floating point or complex numbers."""
    if not dtypes.has_gradient(x.dtype):
        raise TypeInferError(
            f"{name} must be floating point",
            found=str(x),
            expected="float16 to float64, or complex64, complex128",
        )


def require_ndim(x: TensorType, ndim: int, name: str) -> None:
    """Raise TypeInferError unless the tensor has this many axes."""
    if x.ndim != ndim:
        raise TypeInferError(f"{name} must have {ndim} axes", found=str(x), expected=f"ndim {ndim}")


def pair(value: int | tuple[int, ...], name: str, count: int = 2) -> tuple[int, ...]:
    """Return one value per spatial axis from an int or a tuple of 1 or ``count`` ints."""
    if isinstance(value, int):
        return (value,) * count
    if len(value) == 1:
        return value * count
    if len(value) != count:
        raise TypeInferError(f"{name} must be an int or {count} ints", found=value)
    return value


def permutation(axes: int | tuple[int, ...] | None, ndim: int) -> tuple[int, ...]:
    """Return the axis of the argument for every axis of a transposed result; None reverses all."""
    if axes is None:
        return tuple(reversed(range(ndim)))
    given = (axes,) if isinstance(axes, int) else axes
    result = tuple(normalize_axis(a, ndim) for a in given)
    fits = sorted(result) == list(range(ndim))
    expected = f"a permutation of 0 .. {ndim - 1}"
    require(fits, "axes must name every axis once", expected=expected, found=axes)
    return result


def require_new_axes(count: int) -> None:
    """Raise TypeInferError for a number of axes to be inserted that no array can have."""
    fits = 0 <= count <= MAX_AXES
    require(fits, "num_newaxis is no number of axes", expected=f"0 to {MAX_AXES}", found=count)


def inverse_permutation(axes: int | tuple[int, ...] | None, ndim: int) -> tuple[int, ...]:
    """Return the permutation that undoes another."""
    order = permutation(axes, ndim)
    return tuple(order.index(i) for i in range(ndim))


def swap_permutation(axis1: int, axis2: int, ndim: int) -> tuple[int, ...]:
    """Return the permutation that exchanges two axes."""
    a, b = normalize_axis(axis1, ndim), normalize_axis(axis2, ndim)
    return tuple(b if i == a else a if i == b else i for i in range(ndim))


def array_limit_error(types: Sequence[Any]) -> tuple[str, str, str] | None:
    """Return what is wrong with results of these types, what would be right, and what was found;
    None if an array can be of each.

    The strides of an empty array are those of one with extents of 1 instead of 0.
    """
    if len(types) > MAX_RESULTS:
        return "there are too many results", f"at most {MAX_RESULTS}", str(len(types))
    for type_ in types:
        if not isinstance(type_, TensorType):
            continue
        if len(type_.shape) > MAX_AXES:
            return "a result has too many axes", f"at most {MAX_AXES}", str(len(type_.shape))
        size = bits(type_.dtype) // 8
        for extent in type_.shape:
            if isinstance(extent, int):
                if extent < 0:
                    return "a result has a negative extent", "extents of 0 or more", str(type_)
                size *= extent or 1
        if size > MAX_BYTES:
            return "a result is larger than an array can be", "less than 2**63 bytes", str(type_)
    return None


def require_same_dtype(*operands: Any) -> str:
    """Return the one dtype of the operands: tensors, and Python numbers that take the tensors'.

    Nothing is promoted. Whether a dtype holds a number's value is checked by the schema (`Takes`).
    A float needs floating point tensors and an int tensors of numbers; a bool fits everywhere.
    Numbers alone have the dtype of an array made of them: float32, int64 or bool.
    Raises TypeInferError, which names the cast that loses least, for anything else.
    """
    tensors = [o for o in operands if isinstance(o, TensorType)]
    if not tensors:
        kinds = {type(o) for o in operands}
        return "float32" if float in kinds else "int64" if int in kinds else "bool"
    dtypes = [t.dtype for t in tensors]
    if len(set(dtypes)) > 1:
        raise TypeInferError(
            "the operands differ in dtype",
            expected="one dtype: nothing is promoted",
            found=" and ".join(map(str, tensors)),
            hint=_cast_of(dtypes),
        )
    for operand in operands:
        if not isinstance(operand, TensorType | bool):
            _require_fits(operand, tensors[0])
    return dtypes[0]


def _require_fits(number: int | float, tensor: TensorType) -> None:
    dtype = tensor.dtype
    if is_real(dtype) or dtype in COMPLEX or (isinstance(number, int) and dtype != "bool"):
        return
    kind = type(number).__name__
    wider = "float32" if isinstance(number, float) else "int64"
    raise TypeInferError(
        f"a Python {kind} does not fit a tensor of {dtype}",
        expected="a number that needs no wider dtype: nothing is promoted",
        found=f"{number} and {tensor}",
        hint=f'cast the tensor: meta.astype(x, "{wider}")',
    )


def _cast_of(dtypes: list[str]) -> str:
    """Say which tensors to cast so that the least is lost: the narrower ones."""
    common = reduce(promote, dtypes)
    narrow = [d for d in dict.fromkeys(dtypes) if d != common]
    ones = "ones" if len(narrow) > 1 else "one"
    return f'cast the {" and ".join(narrow)} {ones}: meta.astype(x, "{common}")'
