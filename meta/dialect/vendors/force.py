"""Which parts of which vendor's folder are in force on a device."""

from __future__ import annotations

import threading
import warnings

from meta.base import config
from meta.base.device import BUILT_IN, Device
from meta.base.errors import MetaError, MetaWarning
from meta.dialect.core.scope import LaunchSettings, Scope
from meta.dialect.vendors.detect import active
from meta.dialect.vendors.folder import ScopeFiles, architecture_of, launch, read

_lock = threading.RLock()
_reads = False


def files_on(device: Device) -> list[ScopeFiles]:
    """Return what the vendor in force on a device has, the most specific first; nothing where
    none is. Its files are read when they are first asked for.

    Files that are wrong are a FormatError where META_VENDOR names the vendor, or where nobody else
    has the device. Otherwise the vendor is left out, which a MetaWarning says once. Raises
    UnknownName and DeviceError as `active`.
    """
    global _reads
    if _reads:  # what a vendor's file asks for while it is read is answered without it
        with _lock:
            if _reads:
                return []
    one = active(device.kind)
    if one is None or one.vendor is None:
        return []
    with _lock:
        _reads = True
        try:
            return read(one).parts(architecture_of(one.vendor, device))
        except MetaError as error:
            if config.get("META_VENDOR") or device.kind not in BUILT_IN:
                raise
            if not one.unavailable:
                one.unavailable = f"its files cannot be used: {error.what} ({error.span})"
                text = f"the vendor {one.name!r} is left out: {one.unavailable}"
                warnings.warn(text, MetaWarning, stacklevel=2)
            return []
        finally:
            _reads = False


def scopes(device: Device) -> tuple[Scope, ...]:
    """Return the scopes in force on a device; see `core.scope.VENDORS`."""
    return tuple(part.scope for part in files_on(device))


def launch_on(name: str, device: Device) -> LaunchSettings:
    """Return how kernels of a name are launched on a device; see `core.scope.LAUNCH_SETTINGS`."""
    return launch(files_on(device), name)
