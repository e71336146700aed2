"""Devices. A device is a ``str`` in canonical form, "cpu" or "cuda:0", so that comparison and
hashing are free. Of other kinds there are those that vendors state; torch must have them.

``with Device("cuda"):`` lets what is made without a device be there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from meta.base.aliases import DEVICE
from meta.base.call_context import context
from meta.base.errors import ArgumentError, DeviceError, UnknownName

_FORM = re.compile(r"([a-z]\w*)(?:[:(](\d{1,4})\)?)?")
BUILT_IN = ("cpu", "cuda")
"""The kinds of devices that all of `meta` knows. Of others, only calls of vendors' kernels."""
_kinds: tuple[str, ...] = BUILT_IN


def kinds() -> tuple[str, ...]:
    """Return all kinds of devices, those of vendors last."""
    return _kinds


def set_further_kinds(names: Iterable[str]) -> None:
    """Say which kinds there are besides those `BUILT_IN`, by the names that torch has for them."""
    global _kinds
    _kinds = tuple(dict.fromkeys((*BUILT_IN, *names)))


class Device(str):
    """A place where arrays live and kernels run.

    ``Device("cuda")`` is ``"cuda:0"``. ``kind`` is "cpu", "cuda" or that of a vendor,
    ``ordinal`` its number (0 on the CPU). Raises DeviceError for a text of another form. That the
    device is present is checked by `require`.

    >>> meta.device("cuda"), meta.device("cpu").kind, meta.device("cuda:1").ordinal
    ('cuda:0', 'cpu', 1)
    >>> with meta.device("cpu"):  # where new arrays are made
    ...     meta.ones(3).device
    'cpu'
    """

    __slots__ = ("kind", "ordinal")
    kind: str
    ordinal: int

    def __new__(cls, text: object) -> Device:
        """Parse "cpu", "cuda", "cuda:1", "cuda(1)" or a torch.device."""
        if isinstance(text, Device):
            return text
        match = _FORM.fullmatch(str(text))
        known = match is not None and match[1] in _kinds
        if match is None or not known or (match[1] == "cpu" and int(match[2] or 0) != 0):
            vendors = "".join(f", {kind!r}" for kind in _kinds[len(BUILT_IN) :])
            raise DeviceError(
                "unknown device", expected=f"'cpu', 'cuda' or 'cuda:N'{vendors}", found=repr(text)
            )
        ordinal = int(match[2] or 0)
        self = super().__new__(cls, "cpu" if match[1] == "cpu" else f"{match[1]}:{ordinal}")
        self.kind, self.ordinal = match[1], ordinal
        return self

    def __enter__(self) -> Device:
        """Let arrays that are made in the block be on this device, unless they are told another
        one, or what they are made of has one; DeviceError if it is not present.
        """
        here = context.get()
        context.set(here.changed({"devices": (*here.devices, require(self))}))
        return self

    def __exit__(self, *error: object) -> None:
        here = context.get()
        context.set(here.changed({"devices": here.devices[:-1]}))

    if not TYPE_CHECKING:  # for which there is no such attribute

        def __getattr__(self, name: str) -> str:
            if name in DEVICE:
                raise UnknownName(f"a device has no {name!r}", hint=f"write {DEVICE[name]}")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


CPU = Device("cpu")
NOWHERE = str.__new__(Device, "without memory")
"""Of an array whose values are still to be drawn or loaded (`meta/runtime/deferred_values.py`)."""
NOWHERE.kind, NOWHERE.ordinal = "none", 0


def default_device() -> Device:
    """Return where what is made without a device is: the CPU, or that of the innermost block."""
    devices = context.get().devices
    return devices[-1] if devices else CPU


def available() -> list[Device]:
    """Return the devices of this machine, the CPU first."""
    return [CPU, *(Device(f"cuda:{i}") for i in range(torch.cuda.device_count()))]


def require(device: object) -> Device:
    """Return the device if this machine has it, else raise DeviceError naming those it has."""
    found = Device(device)
    if found.kind not in BUILT_IN and not is_in_torch(found.kind):
        raise DeviceError(
            f"the device {found} is not present",
            found=f"a torch that has no {found.kind}",
            hint="import the package that brings it to torch",
        )
    if found.kind == "cuda" and found.ordinal >= torch.cuda.device_count():
        raise DeviceError(
            f"the device {found} is not present",
            expected=", ".join(available()),
            found=str(found),
            hint=_without_cuda(),
        )
    return found


def has_name_in_torch(kind: str) -> bool:
    """Whether a kind of device has a name in torch. Packages add kinds."""
    try:
        torch.device(kind)
    except RuntimeError:
        return False
    return True


def is_in_torch(kind: str) -> bool:
    """Whether torch has a kind of device, and at least one of it."""
    try:
        torch.device(kind)
        return bool(torch.get_device_module(kind).is_available())
    except (RuntimeError, AttributeError):
        return False


def _without_cuda() -> str | None:
    """Return what to do where there is no CUDA device at all, None where there is one."""
    if torch.version.cuda is None:
        return "this torch is built without CUDA: install one that has it"
    if torch.cuda.device_count() == 0:
        return "no NVIDIA GPU is visible: look at nvidia-smi and CUDA_VISIBLE_DEVICES"
    return None


def destination(target: object, device: object, dtype: object) -> tuple[object, object]:
    """Return the device and the dtype that ``to(target, device=, dtype=)`` means, each or None:
    a target is one of both. ArgumentError for a target beside another.
    """
    if target is None:
        return device, dtype
    if device is not None or dtype is not None:
        raise ArgumentError(
            "to() takes a device or a dtype, or both by their names",
            hint="x.to(device=..., dtype=...)",
        )
    place = isinstance(target, Device | torch.device) or str(target).startswith(kinds())
    return (target, None) if place else (None, target)
