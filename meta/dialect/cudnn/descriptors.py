"""What the functions of libcudnn are told about their arguments, made once for each kernel."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

from meta.dialect.core import Unsupported
from meta.dialect.cudnn.graph import Operand
from meta.dialect.cudnn.library import check, functions
from meta.ir.types import TensorType

_CODES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}
PROPAGATE_NAN = 1
INT_LIMIT = 2**31
"""Extents, strides and the number of elements have to be below it."""


class Descriptor:
    """A descriptor of the library, which lives as long as the object."""

    def __init__(self, kind: str, setter: str, *values: Any) -> None:
        made, library = ctypes.c_void_p(), functions()
        check(getattr(library, f"cudnnCreate{kind}Descriptor")(ctypes.byref(made)), kind)
        assert made.value is not None
        self.number = made.value
        # Called before the interpreter ends, too, while there is a library to call.
        weakref.finalize(self, getattr(library, f"cudnnDestroy{kind}Descriptor"), made)
        check(getattr(library, setter)(made, *values), setter)


def tensor(operand: Operand) -> Descriptor:
    """Return the descriptor of a tensor of four or five axes."""
    count, code = len(operand.dims), _CODES[operand.dtype]
    arrays = _ints(operand.dims), _ints(operand.strides)
    return Descriptor("Tensor", "cudnnSetTensorNdDescriptor", code, count, *arrays)


def pooling(
    mode: int, kernel: tuple[int, ...], padding: tuple[int, ...], stride: tuple[int, ...]
) -> Descriptor:
    """Return the descriptor of a window over the spatial axes."""
    arrays = _ints(kernel), _ints(padding), _ints(stride)
    setter = "cudnnSetPoolingNdDescriptor"
    return Descriptor("Pooling", setter, mode, PROPAGATE_NAN, len(kernel), *arrays)


def activation(mode: int) -> Descriptor:
    """Return the descriptor of an elementwise function."""
    return Descriptor("Activation", "cudnnSetActivationDescriptor", mode, PROPAGATE_NAN, 0.0)


def factors(dtype: str) -> tuple[Number, Number]:
    """Return 1 and 0: by what results are multiplied, and by what the memory that they replace."""
    kind = ctypes.c_double if dtype == "float64" else ctypes.c_float
    return Number(kind(1)), Number(kind(0))


class Number:
    """A number on the host that the library reads through its address."""

    def __init__(self, kept: ctypes.c_float | ctypes.c_double) -> None:
        self._kept = kept
        self.number = ctypes.addressof(kept)


def _ints(values: tuple[int, ...]) -> ctypes.Array[ctypes.c_int]:
    return (ctypes.c_int * len(values))(*values)


def require_elements(*types: TensorType) -> None:
    """Raise Unsupported for tensors that the library's functions do not take."""
    if not all(t.is_static for t in types):
        raise Unsupported("a descriptor is made for extents that are numbers")
    if not all(0 < t.size < INT_LIMIT for t in types):
        raise Unsupported(f"cuDNN takes 1 to {INT_LIMIT - 1} elements")
