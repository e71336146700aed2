"""The folder of a vendor whose files are imported or run here, and what they ask of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Protocol

from meta.base.errors import MetaError, UnknownName
from meta.base.registry import nearest
from meta.dialect.vendors.imports import reason_of_failure
from meta.dialect.vendors.jit import interprets
from meta.dialect.vendors.vendor import Vendor


class Launches(Protocol):
    """The folder whose files are imported or run: its configurations and heuristics."""

    vendor: Vendor
    package: ModuleType

    def configs(self, name: str) -> tuple[Mapping[str, Any], ...] | None:
        """Return the configurations of a name, None if there are none."""

    def heuristics(self, name: str) -> Mapping[str, Callable[..., Any]] | None:
        """Return the heuristics of a name, None if there are none."""

    def names(self) -> list[str]:
        """Return the names of which there are any."""


CURRENT: ContextVar[Launches | None] = ContextVar("meta_reading_vendor", default=None)


def reading() -> Launches | None:
    """Return the folder that is being read here, or runs; None if none is."""
    return CURRENT.get()


def reader(what: str) -> Launches:
    """Return the folder that is being read here; UnknownName where none is."""
    own = reading()
    if own is None:
        raise UnknownName(
            f"{what} asked for outside of the folder of a vendor",
            hint="ask in a file of ops/, when it is imported",
        )
    return own


def get_tuned_config(name: str) -> list[Any]:
    """Return the configurations of a name as `triton.Config`, for ``triton.autotune``: those of
    the architecture, else of the vendor, whose folder is being read.

    Where kernels are interpreted, nothing is timed, and there is the first one only. Raises
    UnknownName for a name that the folder does not have, and outside of a vendor's folder;
    UnavailableName for a configuration that only the vendor's own Triton takes.
    """
    import triton

    found = _own(name, "configurations", "tune_configs.yaml", lambda own: own.configs(name))
    chosen = found[:1] if interprets() else found
    try:
        return [triton.Config(**config) for config in chosen]
    except TypeError as error:
        raise reason_of_failure(error) from None


def get_heuristic_config(name: str) -> Mapping[str, Callable[..., Any]]:
    """Return the heuristics of a name, for ``triton.heuristics``; otherwise as
    `get_tuned_config`.
    """
    file = "heuristics_config_utils.py"
    found: Mapping[str, Callable[..., Any]] = _own(
        name, "heuristics", file, lambda own: own.heuristics(name)
    )
    return found


def _own(name: str, what: str, file: str, get: Callable[[Launches], Any]) -> Any:
    own = reader(f"the {what} of {name!r} are")
    found = get(own)
    if isinstance(found, MetaError):
        raise found
    if found is None:
        raise UnknownName(
            f"the vendor {own.vendor.name!r} has no {what} of {name!r}",
            expected=f"an entry in its {file}; nothing is taken from other vendors",
            hint=nearest(name, own.names()),
        )
    return found
