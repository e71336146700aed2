"""Arrays of which the values are still to be drawn or loaded, and have no memory until then.

`empty_init` is for models that are loaded: what is loaded never is drawn, nor allocated twice. The
key of a draw is taken when the array is made, so that what is drawn in the end has the values that
it would have had at once. Reading such an array is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from meta.base.call_context import context, override_context
from meta.base.device import NOWHERE, Device, require
from meta.base.dtype import TO_TORCH, canonical
from meta.runtime import random
from meta.runtime.array_key import array_key, key_of
from meta.runtime.ndarray import ndarray

Change = Callable[[torch.Tensor], object]


@dataclass(frozen=True)
class Deferred:
    """The initial values of an array.

    Attributes
    ----------
    device: where they will be. values: returns them. key: of the random numbers that ``values``
    draws, None for constants. changes: what is done to the tensor then.
    """

    device: Device
    values: Callable[[], ndarray]
    key: int | None
    changes: tuple[Change, ...] = ()


@contextmanager
def empty_init() -> Iterator[None]:
    """Let models that are built in the block draw no initial values, for those that are loaded.

    Their parameters have shapes, dtypes and no memory until `load_weights` or `load_state_dict`
    gives them values; what a load with ``strict=False`` leaves out is drawn then, as it would have
    been drawn by the constructor. ``model.to("bfloat16")`` costs nothing before. To read a
    parameter that has no values, or to call the model, is an ArgumentError.

    >>> import meta
    >>> with meta.model.empty_init():
    ...     model = meta.model.Linear(1 << 20, 1 << 20)
    >>> model.weight.shape
    (1048576, 1048576)
    """
    with override_context(defers_values=True):
        yield


def is_deferring() -> bool:
    """Whether initial values are drawn later, if at all."""
    return context.get().defers_values


def deferred(array: ndarray) -> Deferred | None:
    """Return the values that an array will have; None if it has some."""
    return getattr(array, "_deferred", None)


def deferred_array(
    shape: tuple[int, ...], dtype: str, device: Device, values: Callable[[], ndarray]
) -> ndarray:
    """Return an array whose values are those that a function draws; see `defer`."""
    found = ndarray(
        torch.empty(shape, dtype=TO_TORCH[dtype], device="meta"), array_key(shape, dtype, NOWHERE)
    )
    found._deferred = Deferred(device, values, random.default.key())
    return found


def defer(array: ndarray, values: Callable[[], ndarray], draws: bool) -> None:
    """Let an array without values have others in the end. ``draws``: whether they are random."""
    key = random.default.key() if draws else None
    array._deferred = Deferred(array._deferred.device, values, key)


def change_when_drawn(array: ndarray, change: Change) -> None:
    """Do something to an array without values when it has some, unless they are loaded."""
    known = array._deferred
    array._deferred = replace(known, changes=(*known.changes, change))


def draw(array: ndarray) -> None:
    """Give an array without values those that it is to have."""
    known = array._deferred
    keys = [] if known.key is None else [known.key]
    with override_context(defers_values=False), random.replay_keys(keys):
        tensor = known.values().to(device=known.device, dtype=array.dtype).tensor
    for change in known.changes:
        change(tensor)
    give(array, tensor)


def give(array: ndarray, tensor: torch.Tensor) -> None:
    """Let an array be in the memory of a tensor of any dtype and device; it was without values, or
    nothing was compiled for it.
    """
    array.key, array.tensor = key_of(tensor), tensor
    if deferred(array) is not None:
        del array._deferred


def moved_deferred(array: ndarray, device: object, dtype: object) -> ndarray:
    """Return an array without values like one, for a device and of a dtype; None: as before."""
    known, name = array._deferred, canonical(dtype or array.dtype)
    place = known.device if device is None else require(device)
    if name == array.dtype and place == known.device:
        return array
    found = ndarray(array.tensor.to(TO_TORCH[name]), array_key(array.shape, name, NOWHERE))
    found._deferred = replace(known, device=place)
    return found
