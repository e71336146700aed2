"""`ArrayKey`: what defines an array for dispatch, interned."""

from __future__ import annotations

import sys
from typing import Any

import torch

from meta.base import dtype as dtypes
from meta.base.device import CPU, Device
from meta.base.errors import ArgumentError
from meta.base.number import MAX_AXES


class ArrayKey:
    """What dispatch needs to know of an array. Interned: equal keys are the same object.

    ``kind`` stands for dtype and device: compact arrays of one kind have it in common. None: the
    array is not compact.
    """

    __slots__ = ("compact", "device", "dtype", "kind", "shape", "type")

    def __init__(self, shape: tuple[int, ...], dtype: str, device: Device, compact: bool) -> None:
        self.shape, self.dtype, self.device, self.compact = shape, dtype, device, compact
        self.kind = _KINDS.setdefault((dtype, device), object()) if compact else None
        self.type: Any = None  # the IR type, filled in by the first floor that knows types


KEYS = 1 << 15
"""Keys from which on those are forgotten that nobody holds."""
_KEYS: dict[tuple[Any, ...], ArrayKey] = {}
_KINDS: dict[tuple[str, Device], object] = {}
_key_limit = KEYS
_UNREFERENCED_COUNT = 4
"""References to a key that nobody holds: of the dict, the list of its items, a name, a call."""
_DEVICES: dict[torch.device, Device] = {torch.device("cpu"): CPU}


def array_key(shape: tuple[int, ...], dtype: str, device: Device, compact: bool = True) -> ArrayKey:
    """Return the one key of this description."""
    description = (shape, dtype, device, compact)
    key = _KEYS.get(description)
    if key is None:
        if len(_KEYS) >= _key_limit:
            _forget_keys()
        if len(shape) > MAX_AXES:
            raise ArgumentError(
                "this array has too many axes", expected=f"at most {MAX_AXES}", found=len(shape)
            )
        key = _KEYS.setdefault(description, ArrayKey(*description))
    return key


def _forget_keys() -> None:
    """Let those keys go that nobody holds. A key that comes back is another object, so what is held
    stays: who has it compares it with those of new arrays.
    """
    global _key_limit
    for description, key in list(_KEYS.items()):
        if sys.getrefcount(key) <= _UNREFERENCED_COUNT:
            _KEYS.pop(description, None)
    _key_limit = max(KEYS, 2 * len(_KEYS))


def key_of(tensor: torch.Tensor) -> ArrayKey:
    """Return the key of a torch tensor; ArgumentError for a dtype or layout and DeviceError for a
    device that `meta` does not have.
    """
    device = _DEVICES.get(tensor.device)
    if device is None:
        device = _DEVICES.setdefault(tensor.device, Device(tensor.device))
    dtype = dtypes.FROM_TORCH.get(tensor.dtype)
    if dtype is None:
        raise ArgumentError(
            "a tensor of this dtype is not supported",
            expected=", ".join(dtypes.DTYPES),
            found=str(tensor.dtype),
            hint="convert it first, for example with .to(torch.float32)",
        )
    if tensor.layout is not torch.strided:
        raise ArgumentError(
            "a tensor of this layout is not supported",
            expected="a dense tensor",
            found=str(tensor.layout),
            hint="convert it first, with .to_dense()",
        )
    if tensor.is_neg():
        raise ArgumentError(
            "the memory of this tensor has its values with the opposite sign",
            expected="a tensor that is no negated view",
            found=f"a negated view of shape {tuple(tensor.shape)}",
            hint="copy it with meta.array(x), or use x.resolve_neg()",
        )
    if dtype in dtypes.COMPLEX and tensor.is_conj():
        raise ArgumentError(
            "the memory of this tensor has the conjugates of its values",
            expected="a tensor that is no conjugated view",
            found=f"a conjugated view of shape {tuple(tensor.shape)}",
            hint="copy it with meta.array(x), or use x.resolve_conj()",
        )
    return array_key(tuple(tensor.shape), dtype, device, tensor.is_contiguous())
