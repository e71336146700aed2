"""Array coercion, tensors of what the host has: Python's numbers, numpy's, nested lists of them,
and DLPack exporters.

A number goes to the dtype asked for at once, so that float64 and int64 have all its digits.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import torch

from meta.base.dtype import TO_NUMPY, TO_TORCH, canonical, prepare_cast
from meta.base.errors import ArgumentError, MetaError
from meta.base.number import integer_range, out_of_range
from meta.runtime import external_memory
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


# Arrays of other libraries through DLPack, looked at before torch takes them.
#
# torch ends the process at strides that it does not have. So the exporter's own description of its
# memory (DLPack's ABI, version 0 and 1) is read first.


_READ_ONLY = 1


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes, _is_valid.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_int
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p


def from_exporter(obj: Any) -> torch.Tensor:
    """Return a tensor that shares memory with a DLPack exporter; ArgumentError if it refuses, or
    has memory that torch cannot describe or nobody may write.
    """
    try:
        return torch.utils.dlpack.from_dlpack(_CheckedExporter(obj))
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
        raise ArgumentError(
            "this object does not share its memory",
            expected="an exporter of the DLPack protocol",
            found=f"{type(obj).__name__}: {error}",
            hint=_hint(obj),
        ) from error


class _CheckedExporter:
    """An exporter whose capsules are looked at before they are handed on."""

    def __init__(self, exporter: Any) -> None:
        self.exporter = exporter

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self.exporter.__dlpack__(**options)
        self.require_plain(capsule)
        return capsule

    def __dlpack_device__(self) -> Any:
        return self.exporter.__dlpack_device__()

    def require_plain(self, capsule: Any) -> None:
        flags = 0
        if _is_valid(capsule, b"dltensor_versioned"):
            found = ctypes.cast(
                _pointer(capsule, b"dltensor_versioned"), ctypes.POINTER(_Versioned)
            ).contents
            if found.major > 1:
                raise BufferError(f"a capsule of DLPack {found.major}.{found.minor}")
            flags, tensor = found.flags, found.tensor
        elif _is_valid(capsule, b"dltensor"):
            tensor = ctypes.cast(_pointer(capsule, b"dltensor"), ctypes.POINTER(_Tensor)).contents
        else:
            raise BufferError("no capsule with a tensor that nobody has taken yet")
        if flags & _READ_ONLY:
            raise ArgumentError(
                "read-only memory cannot be shared: an array can be written",
                found=f"a read-only {type(self.exporter).__name__}",
                hint=_hint(self.exporter),
            )
        shape = tensor.shape[: tensor.ndim] if tensor.ndim > 0 else []
        strides = tensor.strides[: tensor.ndim] if tensor.ndim > 0 and tensor.strides else []
        if min((0, *shape, *strides)) < 0 or tensor.lanes != 1:
            raise ArgumentError(
                "memory of this form cannot be shared",
                expected="extents and strides of at least 0, one number per element",
                found=f"shape {tuple(shape)}, strides {tuple(strides)}, {tensor.lanes} lanes",
                hint=_hint(self.exporter),
            )


def _hint(obj: Any) -> str:
    """Return how to get an array of what does not share its memory."""
    return "copy it with meta.array(x)" if hasattr(obj, "__array__") else "copy it before"
