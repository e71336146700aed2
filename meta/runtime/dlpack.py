"""Arrays of other libraries through DLPack, looked at before torch takes them.

torch ends the process at strides that it does not have. So the exporter's own description of its
memory (DLPack's ABI, version 0 and 1) is read first.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from meta.base.errors import ArgumentError

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
