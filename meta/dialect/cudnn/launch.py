"""Kernels that are one call of a function of libcudnn, not a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from meta.dialect.cudnn import handles
from meta.dialect.cudnn.descriptors import Descriptor, Number
from meta.dialect.cudnn.library import check, functions


@dataclass(frozen=True, slots=True)
class Place:
    """Stands for the address of a tensor, by its number among those of a call."""

    index: int


Argument = int | Descriptor | Number | Place


class Launch:
    """A function of the library with all arguments bound but the handle and the tensors.

    ``arguments``: numbers, descriptors and places, in the function's order.
    """

    __slots__ = ("_arguments", "_device", "_function", "_name", "_places", "_values")

    def __init__(self, name: str, device: int, *arguments: Argument) -> None:
        self._name, self._function, self._device = name, getattr(functions(), name), device
        self._arguments = arguments  # keeps what is addressed
        self._values: list[Any] = [_value(a) for a in arguments]
        self._places = [(i, a.index) for i, a in enumerate(arguments) if isinstance(a, Place)]

    def __call__(self, *tensors: torch.Tensor) -> None:
        """Launch it on torch's current stream."""
        if torch.cuda.current_device() != self._device:
            with torch.cuda.device(self._device):
                return self(*tensors)
        values = self._values.copy()
        for at, index in self._places:
            values[at] = tensors[index].data_ptr()
        check(self._function(handles.current(self._device), *values), self._name)


def _value(argument: Argument) -> int:
    if isinstance(argument, Place):
        return 0
    return argument if isinstance(argument, int) else argument.number
