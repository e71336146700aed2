"""What converters do to their arguments: promotion, axes, numbers in a dtype, extents, layouts.

Operands are promoted as torch promotes before base operators see them (`promote`), which take one
dtype. Tensors with axes decide; a 0-d tensor, and after it a Python number, counts only where its
kind (bool, integer, floating point, complex) is above that of what decides. Source:
https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc

torch wraps a number around where an integer dtype cannot hold it, and takes an extent of a symbolic
shape for a number: base operators are given a number that fits, and of an extent a scalar, which a
program computes from its arguments' shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from meta import op
from meta.base.call_context import current
from meta.base.device import CPU, Device
from meta.base.dtype import COMPLEX, FROM_TORCH, REAL_OF, TO_TORCH, has_gradient
from meta.frontend.core import CallSite, Unconvertible, active_trace
from meta.frontend.core.arithmetic import cast_number
from meta.ir.dims import Quotient, SymbolicDim
from meta.op.core.check import normalize_axes, normalize_axis
from meta.op.core.tracing import Trace
from meta.runtime.ndarray import array


def is_number(value: Any) -> bool:
    """Whether an operand is a Python number or a dimension, which is an integer."""
    return isinstance(value, bool | int | float | complex | SymbolicDim)


def _kind(dtype: torch.dtype) -> int:
    if dtype.is_complex:
        return 3
    return 2 if dtype.is_floating_point else int(dtype != torch.bool)


def of_number(value: Any) -> torch.dtype:
    """Return the dtype of a Python number where no tensor says another."""
    if isinstance(value, bool):
        return torch.bool
    if isinstance(value, int | SymbolicDim):
        return torch.int64
    default = torch.get_default_dtype()
    return default.to_complex() if isinstance(value, complex) else default


def _promote_all(dtypes: Iterable[torch.dtype]) -> torch.dtype | None:
    found = list(dtypes)
    return reduce(torch.promote_types, found) if found else None


def _promote_weak(strong: torch.dtype | None, weak: torch.dtype | None) -> torch.dtype | None:
    """Return the dtype of operands that decide and of others, which raise its kind at most."""
    if strong is None or weak is None or _kind(strong) >= _kind(weak):
        return weak if strong is None else strong
    if strong.is_floating_point:
        return strong.to_complex()
    return torch.promote_types(strong, weak)


def result_dtype(*operands: Any) -> str:
    """Return the dtype that torch computes in for tensors and numbers: "float32", "int64".

    Raises Unconvertible for one that is no dtype of ours: complex32, or bcomplex32, which PyTorch
    2.14 and later compute in for bfloat16 and a complex number.
    """
    tensors = [x for x in operands if x is not None and not is_number(x)]
    levels = (
        _promote_all(TO_TORCH[x.dtype] for x in tensors if len(x.shape)),
        _promote_all(TO_TORCH[x.dtype] for x in tensors if not len(x.shape)),
        _promote_all(of_number(x) for x in operands if is_number(x)),
    )
    # 0-d tensors and numbers are combined first, and then what decides with both.
    chosen = reduce(lambda weak, strong: _promote_weak(strong, weak), reversed(levels))
    assert chosen is not None, "a call without operands"
    if chosen not in FROM_TORCH:
        raise Unconvertible(f"it is computed in {chosen}, which is no dtype here")
    return FROM_TORCH[chosen]


def as_float(dtype: str) -> str:
    """Return a dtype, or torch's default for floating point instead of integers and bool."""
    return dtype if _kind(TO_TORCH[dtype]) >= 2 else FROM_TORCH[torch.get_default_dtype()]


def cast(x: Any, dtype: str) -> Any:
    """Return an operand in a dtype; a number stays one."""
    return x if x is None or is_number(x) or x.dtype == dtype else op.astype(x, dtype)


# Arguments.


def axis_of(dim: int, ndim: int) -> int:
    """Return an axis from the start; a tensor without axes counts as one with a single axis."""
    return normalize_axis(dim, max(ndim, 1))


def axes_of(dims: Sequence[int] | int | None, ndim: int) -> tuple[int, ...]:
    """Return axes from the start; None and () are all of them, as torch's reductions say it."""
    if dims is None or dims == ():
        return tuple(range(ndim))
    named = (dims,) if isinstance(dims, int) else tuple(dims)
    return () if ndim == 0 else normalize_axes(named, ndim)


def per_axis(values: Sequence[int] | int, n: int) -> tuple[int, ...]:
    """Return a number for each spatial axis, of a single number or of as many."""
    values = (values,) if isinstance(values, int) else tuple(values)
    return values * n if len(values) == 1 else values


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


def apply_to_components(function: Any, x: Any) -> Any:
    """Return what a function that moves elements gives of complex numbers, by way of their parts;
    of others, what it gives.
    """
    if x.dtype not in COMPLEX:
        return function(x)
    return op.complex(function(op.real(x)), function(op.imag(x)))


def cast_or_take_real(x: Any, dtype: str | None) -> Any:
    """Return a tensor in a dtype; of complex numbers that are to be real ones, the real part."""
    if dtype is None or x.dtype == dtype:
        return x
    if x.dtype in COMPLEX and dtype not in COMPLEX:
        return cast_or_take_real(op.real(x), dtype)
    return op.astype(x, dtype)


def real_dtype(dtype: str) -> str:
    """Return the dtype of the parts of complex numbers; of other dtypes, itself."""
    return REAL_OF.get(dtype, dtype)


# Operands.


def device_of(*operands: Any) -> Device:
    """Return the device of the program, or without one that of the first array, else the CPU."""
    trace = current()
    if isinstance(trace, Trace):
        return trace.device
    devices = (getattr(x, "device", None) for x in tree_leaves(operands))
    return Device(next((d for d in devices if d is not None), CPU))


def as_tensor(value: Any, dtype: str, device: str) -> Any:
    """Return an operand as a tensor of a dtype, a number as a 0-d one."""
    if not is_number(value):
        return cast(value, dtype)
    value = number(value, dtype, device)
    return op.full((), value, dtype, device) if is_number(value) else value


def promote(*values: Any, floating: bool = False, dtype: str | None = None) -> tuple[Any, ...]:
    """Return operands in the dtype that torch computes in, or in ``dtype``; numbers that fit it
    stay numbers, None stays None.

    floating: integers are computed in torch's default for floating point, as by `torch.atan2`.
    """
    found = result_dtype(*values) if dtype is None else dtype
    found = as_float(found) if floating else found
    device = device_of(*values)
    return tuple(number(x, found, device) if is_number(x) else cast(x, found) for x in values)


def complex_dtype(values: Any) -> str | None:
    """Return the dtype of the first complex tensor among values, None if there is none."""
    dtypes = (getattr(x, "dtype", None) for x in tree_leaves(values))
    return next((dtype for dtype in dtypes if dtype in COMPLEX), None)


def require_real(*values: Any) -> None:
    """Raise Unconvertible for complex tensors."""
    found = complex_dtype(values)
    if found is not None:
        raise Unconvertible(f"it is not converted for {found}")
