"""What converters do to arguments: axes, numbers in a dtype, extents as values, layouts.

An extent of a symbolic shape is no number to operators where it is a value, as in ``x * n``:
`value_of` makes a scalar of it, which a program computes from its arguments' shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from meta import op
from meta.base.dtype import COMPLEX, FROM_TORCH, REAL_OF, has_gradient
from meta.frontend.aten.promotion import of_number
from meta.frontend.core import CallSite, Unconvertible, active_trace
from meta.frontend.core.arithmetic import cast_number
from meta.ir.dims import Quotient, SymbolicDim
from meta.op.core.check import normalize_axes, normalize_axis
from meta.runtime.ndarray import array


def axis_of(dim: int, ndim: int) -> int:
    """Return an axis from the start; a tensor without axes counts as one with a single axis."""
    return normalize_axis(dim, max(ndim, 1))


def axes_of(dims: Sequence[int] | int | None, ndim: int) -> tuple[int, ...]:
    """Return axes from the start; None and () are all of them, as torch's reductions say it."""
    if dims is None or dims == ():
        return tuple(range(ndim))
    named = (dims,) if isinstance(dims, int) else tuple(dims)
    return () if ndim == 0 else normalize_axes(named, ndim)


def at_least_1d(x: Any) -> Any:
    """Return a tensor without axes as a vector of one element; others as they are."""
    return op.reshape(x, (1,)) if x.ndim == 0 else x


def restore_0d(y: Any, x: Any) -> Any:
    """Return what was computed of `at_least_1d` x in the shape of x."""
    return op.reshape(y, ()) if x.ndim == 0 else y


def require_strided(layout: Any) -> None:
    """Raise Unconvertible for a layout of memory that is not strided."""
    if layout not in (None, torch.strided):
        raise Unconvertible(f"the layout {layout} is not supported", hint="torch.strided")


def default_dtype() -> str:
    """Return torch's default dtype of floating point numbers."""
    return FROM_TORCH[torch.get_default_dtype()]


def dtype_of_number(value: Any) -> str:
    """Return the dtype that torch gives a tensor made of a Python number."""
    return FROM_TORCH[of_number(value)]


def constant(values: Any, dtype: str, call: CallSite) -> Any:
    """Return an array of the converter's own making, on the device of the program."""
    return array(np.asarray(values), dtype=dtype, device=call.device)


def value_of(dim: int | SymbolicDim) -> Any:
    """Return an extent as a scalar of int64; one that is no number is of the active trace."""
    device = active_trace().device
    if isinstance(dim, int):
        return array(dim, dtype="int64", device=device)
    total: Any = 0
    for atoms, coefficient in dim.terms:
        term: Any = coefficient
        for atom in atoms:
            if isinstance(atom, Quotient):
                factor = op.floor_divide(value_of(atom.numerator), atom.divisor)
            else:
                # Whoever has the extent makes no difference: the kernel reads it of the shape.
                of_it = op.zeros((SymbolicDim(atom),), "bool", str(device))
                factor = op.reshape(op.shape_as_tensor(of_it), ())
            term = factor if isinstance(term, int) and term == 1 else op.multiply(factor, term)
        total = term if isinstance(total, int) and total == 0 else op.add(term, total)
    return total


def number(value: Any, dtype: str, device: object) -> Any:
    """Return a number as operators on tensors of a dtype take it: one that fits, wrapped around as
    torch does; an extent that is no number, and a complex number, as a scalar on a device.
    """
    if isinstance(value, SymbolicDim):
        return op.astype(value_of(value), dtype)
    if isinstance(value, complex):
        if dtype in COMPLEX:
            return array(value, dtype, device=device)
        if value.imag:
            raise Unconvertible(f"{value} has no value in {dtype}")
        value = value.real
    return float(value) if has_gradient(dtype) else cast_number(value, dtype)


def full_tensor(shape: Sequence[Any], value: Any, dtype: str, call: CallSite) -> Any:
    """Return a tensor of one number."""
    found = number(value, dtype, call.device)
    if isinstance(found, bool | int | float):
        return op.full(tuple(shape), found, dtype, str(call.device))
    return op.broadcast_to(found, tuple(shape))


def apply_to_parts(function: Any, x: Any) -> Any:
    """Return what a function that moves elements gives of complex numbers, by way of their parts;
    of others, what it gives.
    """
    if x.dtype not in COMPLEX:
        return function(x)
    return op.complex(function(op.real(x)), function(op.imag(x)))


def cast_or_real_part(x: Any, dtype: str | None) -> Any:
    """Return a tensor in a dtype; of complex numbers that are to be real ones, the real part."""
    if dtype is None or x.dtype == dtype:
        return x
    if x.dtype in COMPLEX and dtype not in COMPLEX:
        return cast_or_real_part(op.real(x), dtype)
    return op.astype(x, dtype)


def real_dtype(dtype: str) -> str:
    """Return the dtype of the parts of complex numbers; of other dtypes, itself."""
    return REAL_OF.get(dtype, dtype)


def shape_vector(dims: Sequence[int | SymbolicDim]) -> Any:
    """Return numbers and dimensions as one vector of int64, in the active trace."""
    scalars = (op.reshape(value_of(d), (1,)) for d in dims)
    return op.concat(tuple(scalars), 0)
