"""What the namespace can do: ``__array_namespace_info__`` of the Array API standard."""

from __future__ import annotations

from typing import Any

from meta.base.device import CPU, Device, available, require
from meta.base.dtype import TO_TORCH
from meta.base.dtype_info import isdtype
from meta.base.number import MAX_AXES

_STANDARD = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float32", "float64", "complex64", "complex128"),
)
DTYPES = tuple(name for name in _STANDARD if name in TO_TORCH)
"""The dtypes of the standard that there are."""


class Info:
    """Capabilities, devices and dtypes. Source: Array API 2024.12, inspection."""

    def capabilities(self) -> dict[str, Any]:
        """Return what the standard leaves open, and is so here."""
        return {
            "boolean indexing": True,
            "data-dependent shapes": True,
            "max dimensions": MAX_AXES,
        }

    def default_device(self) -> Device:
        """Return where arrays are created that nothing is said of."""
        return CPU

    def devices(self) -> list[Device]:
        """Return the devices of this machine."""
        return available()

    def default_dtypes(self, *, device: object = None) -> dict[str, str]:
        """Return the dtypes of arrays that nothing is said of, by kind."""
        _checked(device)
        return {
            "real floating": "float32",
            "complex floating": "complex64",
            "integral": "int64",
            "indexing": "int64",
        }

    def dtypes(
        self, *, device: object = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, str]:
        """Return the standard's dtypes of a kind that `meta.isdtype` knows (None: all), by name."""
        _checked(device)
        return {d: d for d in DTYPES if kind is None or isdtype(d, kind)}


def _checked(device: object) -> None:
    """Raise DeviceError for a device that this machine does not have."""
    if device is not None:
        require(device)


def __array_namespace_info__() -> Info:
    """Return what the namespace can do.

    >>> info = meta.array_api.__array_namespace_info__()
    >>> info.default_dtypes()["real floating"], info.capabilities()["boolean indexing"]
    ('float32', True)
    """
    return Info()
