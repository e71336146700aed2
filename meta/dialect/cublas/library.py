"""The functions of cuBLASLt that a matrix product takes, through ctypes.

Names and numbers are those of ``cublasLt.h``, CUDA 12 and 13.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from meta.base.errors import DeviceError
from meta.dialect.cublas import find_library

DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
FLOAT8_TYPES = {"float8_e4m3fn": 28, "float8_e5m2": 29}
COMPUTE_32F, COMPUTE_64F, COMPUTE_32F_FAST_TF32 = 68, 70, 77
OP_N, OP_T = 0, 1

DESC_TRANSA, DESC_TRANSB, DESC_EPILOGUE, DESC_BIAS_POINTER = 3, 4, 7, 8
DESC_BIAS_BATCH_STRIDE, DESC_AUX_POINTER, DESC_AUX_LD = 10, 11, 12
DESC_A_SCALE_POINTER, DESC_B_SCALE_POINTER = 17, 18
DESC_A_SCALE_MODE, DESC_B_SCALE_MODE, SCALE_PER_ROW = 31, 32, 3  # of cuBLASLt 12.9
LAYOUT_BATCH_COUNT, LAYOUT_STRIDED_BATCH_OFFSET = 5, 6
PREF_MAX_WORKSPACE_BYTES, PREF_REDUCTION_SCHEME_MASK, PREF_MIN_ALIGNMENT = 1, 3, (5, 6, 7, 8)
REDUCTION_COMPUTE_TYPE, REDUCTION_ANY = 2, 7

EPILOGUES = {
    "none": 1,
    "relu": 2,
    "bias": 4,
    "bias_relu": 6,
    "gelu": 32,
    "bias_gelu": 36,
    "gelu_aux": 160,
    "bias_gelu_aux": 164,
    "dgelu": 192,
    "bgrad_x2": 256,  # BGRADA: their A is our x2
    "bgrad_x1": 512,
}
"""What is done with a product before it is written."""

NOT_SUPPORTED = 15
_STATUS = {
    1: "not initialized",
    3: "allocation failed",
    7: "invalid value",
    8: "architecture mismatch",
    11: "mapping error",
    13: "execution failed",
    14: "internal error",
    NOT_SUPPORTED: "not supported",
    16: "license error",
}


class Algorithm(ctypes.Structure):
    """``cublasLtMatmulHeuristicResult_t``: a way to compute a product."""

    _fields_ = (
        ("algo", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@cache
def cublaslt() -> ctypes.CDLL:
    """Return the library; DeviceError where it is not."""
    library = find_library()
    if library is None:
        raise DeviceError("libcublasLt cannot be loaded", hint="pip install nvidia-cublas")
    integer, unsigned, size = ctypes.c_int, ctypes.c_uint64, ctypes.c_size_t
    pointer = ctypes.c_void_p
    library.cublasLtCreate.argtypes = [pointer]
    library.cublasLtMatmulDescCreate.argtypes = [pointer, integer, integer]
    library.cublasLtMatrixLayoutCreate.argtypes = [
        pointer, integer, unsigned, unsigned, ctypes.c_int64,
    ]  # fmt: skip
    library.cublasLtMatmulPreferenceCreate.argtypes = [pointer]
    for kind in ("MatmulDesc", "MatrixLayout", "MatmulPreference"):
        setter = getattr(library, f"cublasLt{kind}SetAttribute")
        setter.argtypes = [pointer, integer, pointer, size]
        getattr(library, f"cublasLt{kind}Destroy").argtypes = [pointer]
    library.cublasLtMatmulAlgoGetHeuristic.argtypes = [*[pointer] * 7, integer, pointer, pointer]
    library.cublasLtMatmulAlgoCheck.argtypes = [pointer] * 8
    library.cublasLtGetVersion.restype = size
    # `cublasLtMatmul` has no types: a plan gives it arguments that are of C types already, which
    # is half the time of a call.
    return library


def status_text(code: int) -> str:
    """Return what a ``cublasStatus_t`` says."""
    return f"status {code}: {_STATUS.get(code, 'unknown error')}"


def check(code: int, what: str) -> None:
    """Raise DeviceError for a status that is not success."""
    if code != 0:
        raise DeviceError(f"{what} failed", found=status_text(code))


_creating = threading.Lock()


def handle(device: int) -> ctypes.c_void_p:
    """Return the handle of a device, which lives as long as the process."""
    with _creating:  # one that is being made ahead is waited for
        return _handle(device)


@cache
def _handle(device: int) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    with torch.cuda.device(device):
        torch.empty(1, device=f"cuda:{device}")  # makes the device's context current
        check(cublaslt().cublasLtCreate(ctypes.byref(made)), "cublasLtCreate")
    return made


class Descriptor:
    """An opaque object of cuBLASLt: "MatmulDesc", "MatrixLayout" or "MatmulPreference"."""

    def __init__(self, kind: str, *arguments: Any) -> None:
        library = cublaslt()
        self.pointer = ctypes.c_void_p()
        create = getattr(library, f"cublasLt{kind}Create")
        check(create(ctypes.byref(self.pointer), *arguments), f"cublasLt{kind}Create")
        self._set: Callable[..., int] = getattr(library, f"cublasLt{kind}SetAttribute")
        self._name = f"cublasLt{kind}SetAttribute"
        weakref.finalize(self, getattr(library, f"cublasLt{kind}Destroy"), self.pointer)

    def set(self, attribute: int, value: Any) -> None:
        """Set an attribute to a value of a C type."""
        code = self._set(self.pointer, attribute, ctypes.byref(value), ctypes.sizeof(value))
        check(code, f"{self._name}({attribute})")
