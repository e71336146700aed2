"""Vendors: makers of chips, whose kernels, configurations and heuristics are folders or packages.

Of a vendor whose chip is here (`detect.py`), what its folder has (`folder.py`) goes before what is
generic. Adding one edits no file of `meta`: a package announces it (entry-point group
``meta.vendors``), `add` takes a path, and META_VENDOR names one or the other. docs/guides/vendor.md
shows each step. What this needs is imported when a call is first dispatched.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from meta.base.device import Device, available
from meta.base.registry import OPERATORS
from meta.dialect.core.scope import LAUNCH_SETTINGS, VENDORS, LaunchSettings, Scope

if TYPE_CHECKING:
    from meta.dialect.vendors.detect import active, verdicts
    from meta.dialect.vendors.folder import files_on
    from meta.dialect.vendors.reading import get_heuristic_config, get_tuned_config
    from meta.dialect.vendors.registry import add, remove
    from meta.dialect.vendors.vendor import Vendor

__all__ = [
    "Vendor",
    "active",
    "add",
    "files_on",
    "get_heuristic_config",
    "get_tuned_config",
    "remove",
    "verdicts",
]
_IN = {
    "Vendor": "vendor", "active": "detect", "add": "registry", "get_heuristic_config": "reading",
    "get_tuned_config": "reading", "files_on": "folder", "remove": "registry", "verdicts": "detect",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_IN[name]}"), name)
    globals()[name] = found
    return found


def _scopes(device: Device) -> tuple[Scope, ...]:
    if import_module("meta.dialect.vendors.detect").active(device.kind) is None:
        return ()  # without what reads their files
    found: tuple[Scope, ...] = import_module("meta.dialect.vendors.folder").scopes(device)
    return found


def _launch(name: str, device: Device) -> LaunchSettings:
    found: LaunchSettings = import_module("meta.dialect.vendors.folder").launch_on(name, device)
    return found


def _operators() -> None:
    """Read the files of the vendors in force: an operator that nobody else has may be theirs."""
    for device in available():
        _scopes(device)


OPERATORS.finders.append(_operators)
VENDORS.append(_scopes)
LAUNCH_SETTINGS.append(_launch)
