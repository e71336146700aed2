"""What converters do to their arguments: numbers out of constants, constants out of numbers,
shapes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from meta import op
from meta.frontend.core.constant_folding import constant_value
from meta.frontend.core.converter import CallSite, Unconvertible
from meta.ir.dims import Dim, SymbolicDim, UnknownDim
from meta.op.core.check import normalize_axis
from meta.runtime.ndarray import array, ndarray

SLICE_END = sys.maxsize
"""An end that no axis reaches: the slice keeps the rest."""


def constant_ints(value: Any) -> tuple[int, ...] | None:
    """Return the integers of a vector or scalar that is known while converting, otherwise None."""
    values = constant_value(value)
    return None if values is None else tuple(int(v) for v in values.numpy().reshape(-1))


def constant_number(value: Any) -> int | float | bool | None:
    """Return the number of a scalar that is known while converting, otherwise None."""
    values = constant_value(value)
    if values is None:
        return None
    if values.size != 1:
        raise Unconvertible(f"a scalar is needed, not shape {list(values.shape)}")
    number: int | float | bool
    number = values.item() if values.ndim == 0 else values.numpy().reshape(-1)[0].item()
    return number


def required_ints(value: Any, what: str) -> tuple[int, ...]:
    """Return the integers of a vector or scalar that is known while converting."""
    numbers = constant_ints(value)
    if numbers is None:
        raise unknown(what)
    return numbers


def required_number(value: Any, what: str) -> int | float | bool:
    """Return the number of a scalar that is known while converting."""
    number = constant_number(value)
    if number is None:
        raise unknown(what)
    return number


def unknown(what: str) -> Unconvertible:
    """Return the refusal of a call that needs what only the run time knows."""
    return Unconvertible(
        f"{what} depends on the values of inputs", hint="give such inputs as constants"
    )


def constant(values: Any, dtype: str, call: CallSite) -> ndarray:
    """Return an array of the converter's own making, on the device of the program."""
    return array(np.asarray(values), dtype=dtype, device=call.device)


def broadcast_along(vector: Any, ndim: int, axis: int) -> Any:
    """Return a vector with axes of extent 1, so that it lies along one axis of a tensor."""
    at = normalize_axis(axis, ndim)
    return op.reshape(vector, tuple(vector.shape[0] if i == at else 1 for i in range(ndim)))


def as_integers(x: Any) -> Any:
    """Return indices or lengths, which may be stated in floats, as integers."""
    return x if "int" in x.dtype else op.astype(x, "int64")


def extent_of(data: Any, axis: int) -> Any:
    """Return an extent as an int, or as an int64 scalar where only the run time knows it."""
    extent = data.shape[axis]
    if isinstance(extent, int):
        return extent
    return op.reshape(op.strided_slice(op.shape_as_tensor(data), (axis,), (axis + 1,)), ())


def vector(numbers: Sequence[Any], call: CallSite) -> Any:
    """Return ints and scalars of integers as one vector of int64."""
    parts = [
        constant([n], "int64", call)
        if isinstance(n, int)
        else op.astype(op.reshape(n, (1,)), "int64")
        for n in numbers
    ]
    return op.concat(tuple(parts), 0) if parts else constant([], "int64", call)


def is_static(shape: Sequence[Dim]) -> bool:
    """Whether all extents are numbers."""
    return all(isinstance(d, int) for d in shape)


def static_extent(extent: Dim, what: str) -> int:
    """Return an extent that has to be a number; Unconvertible if it is none."""
    if isinstance(extent, SymbolicDim | UnknownDim):
        raise Unconvertible(f"{what} has the extent {extent}, which has to be a number")
    return extent


def reshape_as(y: Any, x: Any) -> Any:
    """Return the elements of a tensor in the shape of another, whatever of that is known."""
    known = not any(isinstance(d, UnknownDim) for d in x.shape)
    return op.reshape(y, x.shape) if known else op.reshape_like(y, x)
