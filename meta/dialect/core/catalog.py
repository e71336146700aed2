"""Which dialects there are: those shipped in `meta/dialect/`, and those that other packages
announce.
"""

from __future__ import annotations

import importlib
import pkgutil
import threading
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from meta.base.registry import Registry
from meta.dialect.core.failure import summary
from meta.ir.operators import OP_RESOLVERS

DIALECTS: Registry[Any] = Registry("dialect")
GROUP = "meta.dialects"
Absent = Callable[[str, str], object]
"""Declares a dialect that is unavailable, by its name and the reason."""
_absent: list[Absent] = []
_discovering = threading.RLock()
_discovered = False


def declare_all() -> None:
    """Import the packages that declare our dialects (that is light), and note the names of others'
    packages.

    A stranger's package is imported by the first dispatch, or when its namespace ``meta.op.<name>``
    is used.
    """
    for module in pkgutil.iter_modules([str(Path(__file__).parents[1])]):
        if module.name != "core":
            importlib.import_module(f"meta.dialect.{module.name}")
    for point in entry_points(group=GROUP):
        OP_RESOLVERS.setdefault(point.name, _resolver(point))


def _resolver(point: EntryPoint) -> Any:
    def resolve(name: str) -> Any:
        discover()
        return DIALECTS[point.name].resolve(name)

    return resolve


def discover() -> None:
    """Import the packages that announce a dialect, once. The dialect of one that raises is
    unavailable, and the error is the reason.
    """
    global _discovered
    with _discovering:
        # A package may dispatch while it is imported.
        if _discovered:
            return
        _discovered = True
        for point in entry_points(group=GROUP):
            before = set(DIALECTS)
            try:
                point.load()
            except Exception as error:
                _declare_broken(point, error, sorted(set(DIALECTS) - before))


def declares_absent(declare: Absent) -> Absent:
    """Say how a dialect that is unavailable is declared; `Dialect` is not known here. A
    decorator.
    """
    _absent.append(declare)
    return declare


def _declare_broken(point: EntryPoint, error: Exception, registered: list[str]) -> None:
    """Let the dialects that a package registered before its error be unavailable; if there are
    none, one of the name that it announces.
    """
    reason = f"its package {point.value} cannot be imported: {summary(error)}"
    if not registered:
        # That of another dialect's may be the error.
        name = point.value if point.name in DIALECTS else point.name
        _absent[0](name, reason)
    for name in registered:
        DIALECTS[name].unavailable = reason


def dialects() -> list[Any]:
    """Return all dialects in order of registration."""
    discover()
    return DIALECTS.values()


def known(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``names`` if each is a dialect; UnknownName with the nearest ones otherwise."""
    discover()
    for name in names:
        DIALECTS[name]
    return names
