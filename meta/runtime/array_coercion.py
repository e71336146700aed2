"""Array coercion, tensors of what the host has: Python's numbers, numpy's, nested lists of them,
and DLPack exporters.

A number goes to the dtype asked for at once, so that float64 and int64 have all its digits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from meta.base.dtype import TO_NUMPY, TO_TORCH, canonical, prepare_cast
from meta.base.errors import ArgumentError, MetaError
from meta.base.number import integer_range, out_of_range
from meta.runtime import external_memory
from meta.runtime.dlpack import from_exporter
from meta.runtime.torch_leaf import refuse_detach, refuse_transform

# What numpy has of ml_dtypes, and torch cannot read, goes between them as integers.
BITS = {"bfloat16": torch.int16, "float8_e4m3fn": torch.int8, "float8_e5m2": torch.int8}
_PYTHON = {bool, int, float, complex}
_EXACT = 2**53
"""From here on float64 does not have every integer."""


def from_numbers(obj: object, values: np.ndarray[Any, Any], dtype: str) -> torch.Tensor:
    """Return a tensor of ``dtype``. ``values``: what numpy makes of ``obj``.

    Fractions are dropped where integers are asked for; for bool, what is not 0 is True. Raises
    NumberOutOfRange for what the integers do not reach, as NaN and the infinities.
    """
    bounds = integer_range(dtype)
    if bounds is None or values.dtype.kind == "c":
        if values.dtype.kind not in "iubc":
            values = values.astype(np.float64)  # it has all floats, and ints beyond 64 bits
        tensor = _tensor(values)
        return prepare_cast(tensor, TO_TORCH[dtype]).to(TO_TORCH[dtype])
    if dtype == "bool":
        return _tensor(values != 0)
    if values.dtype.kind not in "iubO" and bool((abs(values.astype(np.float64)) >= _EXACT).any()):
        values = np.asarray(obj, dtype=object)  # ints among floats, which numpy has rounded
    if values.dtype.kind == "O":
        whole = [_exact_int(v, dtype, bounds) for v in values.reshape(-1)]
        return _tensor(np.array(whole, TO_NUMPY[dtype]).reshape(values.shape))
    if values.dtype.kind not in "iub":
        values = values.astype(np.float64)
        for v in values[~np.isfinite(values)][:1]:
            _exact_int(v, dtype, bounds)
        values = np.trunc(values)
    if values.size:
        for extreme in (values.min(), values.max()):
            _exact_int(extreme, dtype, bounds)
    return _tensor(values.astype(TO_NUMPY[dtype]))


def _exact_int(value: Any, dtype: str, bounds: tuple[int, int]) -> int:
    number = value.item() if isinstance(value, np.generic) else value
    if not math.isfinite(number) or not bounds[0] <= math.trunc(number) <= bounds[1]:
        raise out_of_range(number, dtype, hint="a wider dtype, or another number")
    return int(number)


def _tensor(values: np.ndarray[Any, Any]) -> torch.Tensor:
    if values.dtype == np.ulonglong:
        values = values.view(np.uint64)  # numpy has two types of this width
    return torch.from_numpy(np.array(values, order="C"))


def from_host(obj: object, dtype: str | None = None) -> torch.Tensor:
    """Convert nested Python numbers, to ``dtype`` at once, or anything numpy understands."""
    if not isinstance(obj, np.ndarray) and hasattr(obj, "__dlpack__"):
        return share_memory(obj)
    numbers = isinstance(obj, np.generic) or not hasattr(obj, "__array__")
    try:
        values = np.asarray(obj)
        if numbers and dtype is not None and _is_numeric(values):
            return from_numbers(obj, values, dtype)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        if isinstance(error, MetaError):
            raise
        raise ArgumentError(
            "this object cannot become an array", found=f"{type(obj).__name__}: {error}"
        ) from error
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    try:
        kind = canonical(values.dtype)
    except ArgumentError as error:
        raise ArgumentError(
            "this object cannot become an array",
            expected=f"numbers of dtype {error.expected}",
            found=f"{type(obj).__name__} of dtype {values.dtype}",
        ) from None
    if kind in ("float64", "complex128") and not _has_dtype(obj):
        # Python's floats carry no precision of their own.
        values = values.astype(np.float32 if kind == "float64" else np.complex64)
    if kind == "uint64":
        if not _has_dtype(obj):  # Python ints are int64
            raise ArgumentError(
                "this object cannot become an array",
                expected="ints from -2**63 to 2**63 - 1, a numpy array of uint64, or a dtype",
                found=type(obj).__name__,
            )
        values = values.view(np.uint64)  # numpy has two types of this width
    if kind in BITS:
        bits = np.dtype(f"i{values.itemsize}")
        return torch.from_numpy(values.view(bits).copy()).view(TO_TORCH[kind])
    if not values.flags.writeable or any(s < 0 or s % values.itemsize for s in values.strides):
        values = values.copy()  # torch has no such tensors
    return torch.from_numpy(values)


def _has_dtype(obj: object) -> bool:
    """Whether an object is of arrays or of NumPy's numbers, which have a dtype of their own."""
    if isinstance(obj, list | tuple):
        return not _PYTHON.issuperset(map(type, obj)) and any(map(_has_dtype, obj))
    return hasattr(obj, "__array__") and not isinstance(obj, type)


def _is_numeric(values: np.ndarray[Any, Any]) -> bool:
    """Whether numpy found numbers of a dtype that there is, or ints of more than 64 bits."""
    if values.dtype == object:
        return bool(values.size) and all(isinstance(v, bool | int | float) for v in values.flat)
    return values.dtype in TO_NUMPY.values()


def share_memory(obj: Any) -> torch.Tensor:
    """Return a tensor that shares memory with a DLPack exporter; ArgumentError if it refuses,
    GradientError for a torch tensor that requires a gradient.
    """
    if isinstance(obj, torch.Tensor):
        hint = "meta.asarray(t), through which gradients pass; or t.detach()"
        refuse_detach(obj, "from_dlpack", hint)
        refuse_transform(obj)
        return obj.detach()
    tensor = from_exporter(obj)
    external_memory.mark_shared(tensor)
    return tensor
