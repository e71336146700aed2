"""Under which of PyTorch's dispatch keys the kernels of a kind of device are."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from meta.base.device import BUILT_IN
from meta.base.errors import DeviceError
from meta.base.registry import nearest
from meta.dialect.vendors.detect import active, verdicts


def key_of(kind: str) -> str:
    """Return the dispatch key of a kind of device: what the vendor in force there states, else the
    kind in capitals.

    Raises DeviceError for a key that is none of a device in PyTorch.
    """
    found = active(kind)
    if found is None or found.vendor is None:
        return kind.upper()
    key = found.vendor.dispatch_key
    known = [name for name in torch._C.DispatchKey.__members__ if _is_of_a_device(name)]
    if key not in known:
        raise DeviceError(
            f"the vendor {found.name!r} states a dispatch key that is none of a device",
            expected="such as 'CPU', 'CUDA' or 'PrivateUse1'",
            found=repr(key),
            hint=nearest(key, known),
        )
    return key


def _is_of_a_device(key: str) -> bool:
    """Whether dense tensors of one kind of device have a dispatch key."""
    if key.startswith(("Autograd", "Autocast", "Start", "End", "Composite")):
        return False
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    return bool(keys.has(torch._C.DispatchKey.Dense)) and key not in ("Dense", "Meta")


def available_devices() -> tuple[str, ...]:
    """Return the kinds of devices that operators can be enabled for: those of vendors in force,
    and those that all of `meta` knows.
    """
    own = [v.known.vendor.device for v in verdicts() if v.active and v.known.vendor is not None]
    return (*(kind for kind in dict.fromkeys(own) if kind not in BUILT_IN), *reversed(BUILT_IN))


def select_devices(device: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the kinds of devices that are meant; DeviceError for one that is not there."""
    here = available_devices()
    if device is None:
        return ("cuda",) if torch.cuda.is_available() else (next(k for k in here if k != "cuda"),)
    found = (device,) if isinstance(device, str) else tuple(device)
    for one in found:
        if one not in here:
            raise DeviceError(
                "operators are enabled for a kind of device",
                expected=" or ".join(map(repr, sorted(here))),
                found=repr(one),
                hint=nearest(str(one), here),
            )
        if one == "cuda" and not torch.cuda.is_available():
            raise DeviceError("there is no CUDA device", found=repr(one))
    return found
