"""The results of a program as arrays, given its tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meta.base.device import Device
from meta.ir import TensorType, TupleType, Type
from meta.runtime import view_copies
from meta.runtime.allocate import storage_address
from meta.runtime.array_key import array_key
from meta.runtime.ndarray import ndarray

if TYPE_CHECKING:
    import torch


def keys_of(type_: Type, device: Device) -> Any:
    """Return the keys of compact arrays of a type; None where extents are not known."""
    if isinstance(type_, TupleType):
        return tuple(keys_of(f, device) for f in type_.fields)
    assert isinstance(type_, TensorType)
    return array_key(type_.static_shape, type_.dtype, device) if type_.is_static else None


def wrapped(value: Any, keys: Any, constants: frozenset[int]) -> Any:
    """Return a result as arrays. What is in a constant's memory is copied."""
    if isinstance(keys, tuple):
        return tuple([wrapped(v, k, constants) for v, k in zip(value, keys, strict=True)])
    if constants and storage_address(value) in constants:
        value = value.clone()
    return ndarray(value, keys)


def mark(result: Any, argument: torch.Tensor, name: str) -> None:
    """Mark what is in the memory of an argument that users are not to write to through it: of a
    copy such as ``x[0]``, or of one that was made compact for the program ``name``.
    """
    if isinstance(result, tuple):
        for one in result:
            mark(one, argument, name)
    elif storage_address(result.tensor) == storage_address(argument):
        view_copies.mark(result.tensor, name)
