"""Kernels that are one call of a function of libcudnn, not a graph: what the functions are told
about their arguments, made once for each kernel.
"""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass
from typing import Any

import torch

from meta.dialect.core import OpEnv, decline_if, require_static
from meta.dialect.cudnn import library
from meta.dialect.cudnn.graph import Operand
from meta.dialect.cudnn.library import check, functions
from meta.ir.types import TensorType
from meta.op.core.call import CallValues

_CODES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}
PROPAGATE_NAN = 1
INT_LIMIT = 2**31
"""Extents, strides and the number of elements have to be below it."""


def require_elements(x: TensorType) -> None:
    """Raise Unsupported for a tensor that the library's functions do not take."""
    require_static(x)
    decline_if(not 0 < x.size < INT_LIMIT, f"cuDNN takes 1 to {INT_LIMIT - 1} elements")


class Descriptor:
    """A descriptor of the library, which lives as long as the object."""

    def __init__(self, kind: str, setter: str, *values: Any) -> None:
        made, library = ctypes.c_void_p(), functions()
        check(getattr(library, f"cudnnCreate{kind}Descriptor")(ctypes.byref(made)), kind)
        self.number = made.value
        # Called before the interpreter ends, too, while there is a library to call.
        weakref.finalize(self, getattr(library, f"cudnnDestroy{kind}Descriptor"), made)
        check(getattr(library, setter)(made, *values), setter)


def ints(values: tuple[int, ...]) -> ctypes.Array[ctypes.c_int]:
    """Return numbers as an argument of the library."""
    return (ctypes.c_int * len(values))(*values)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a call as an argument: its descriptor and its number among all."""

    described: Descriptor
    place: int

    @classmethod
    def of(cls, operand: Operand, place: int) -> Tensor:
        """Describe a tensor of four or five axes."""
        count, code = len(operand.dims), _CODES[operand.dtype]
        arrays = ints(operand.dims), ints(operand.strides)
        setter = "cudnnSetTensorNdDescriptor"
        return cls(Descriptor("Tensor", setter, code, count, *arrays), place)

    def at(self, place: int) -> Tensor:
        """Return another tensor of the same description."""
        return Tensor(self.described, place)


class Launch:
    """A function of the library with all arguments bound but the handle and the tensors.

    It is told ``how``, 1, what it reads, 0, and what it writes: results are multiplied by 1, and
    what was there before by 0.
    """

    __slots__ = ("_device", "_function", "_keeps", "_name", "_places", "_values")

    def __init__(
        self, name: str, call: CallValues, how: tuple[int | Descriptor, ...], *tensors: Tensor
    ) -> None:
        self._name, self._function = name, getattr(functions(), name)
        self._device = call.device.ordinal
        wide = next(call.tensors()).dtype == "float64"
        number = ctypes.c_double if wide else ctypes.c_float
        self._keeps = how, tensors
        self._values: list[Any] = [a.number if isinstance(a, Descriptor) else a for a in how]
        self._values.append(ctypes.byref(number(1)))
        self._places = []
        for tensor in tensors:
            if tensor is tensors[-1]:
                self._values.append(ctypes.byref(number(0)))
            self._places.append((len(self._values) + 1, tensor.place))
            self._values += [tensor.described.number, 0]

    def __call__(self, *tensors: torch.Tensor) -> None:
        """Launch it on torch's current stream."""
        if torch.cuda.current_device() != self._device:
            with torch.cuda.device(self._device):
                return self(*tensors)
        values = self._values.copy()
        for at, index in self._places:
            values[at] = tensors[index].data_ptr()
        check(self._function(library.current(self._device), *values), self._name)


def launched(
    name: str, call: CallValues, how: tuple[int | Descriptor, ...], *tensors: Tensor
) -> OpEnv:
    """Return the kernel that a function of the library is; the last tensor is its result."""
    return OpEnv(Launch(name, call, how, *tensors), allocates=False)
