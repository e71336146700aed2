"""Which dialects there are: those shipped in `meta/dialect/`, and those that other packages
announce.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import threading
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from meta.base.registry import OPERATORS, Registry, announced
from meta.dialect.core.backend_errors import located
from meta.ir.operators import OP_RESOLVERS

DIALECTS: Registry[Any] = Registry("dialect")
GROUP = "meta.dialects"
Absent = Callable[[str, str], object]
"""Declares a dialect that is unavailable, by its name and the reason."""
_absent: list[Absent] = []
_discovering = threading.RLock()
_discovered = False
_broken: list[str] = []


def declare_all() -> None:
    """Import the packages that declare our dialects (that is light), and note the names of others'
    packages.

    A stranger's package is imported by the first dispatch, when its namespace ``meta.op.<name>`` is
    used, or when an operator or a dialect is asked for that is not known.
    """
    for module in pkgutil.iter_modules([str(Path(__file__).parents[1])]):
        if module.name != "core":
            importlib.import_module(f"meta.dialect.{module.name}")
    for point in announced(GROUP):
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
        for point in announced(GROUP):
            before, operators = set(DIALECTS), len(OPERATORS)
            try:
                point.load()
            except (Exception, SystemExit) as error:
                _declare_broken(point, error, sorted(set(DIALECTS) - before))
            else:
                if set(DIALECTS) == before and len(OPERATORS) == operators:
                    nothing = TypeError("it registers neither a dialect nor an operator")
                    _declare_broken(point, nothing, [])


def declares_absent(declare: Absent) -> Absent:
    """Say how a dialect that is unavailable is declared; `Dialect` is not known here. A
    decorator.
    """
    _absent.append(declare)
    return declare


def _declare_broken(point: EntryPoint, error: BaseException, registered: list[str]) -> None:
    """Let the dialects that a package registered before its error be unavailable; if there are
    none, one of the name that it announces.
    """
    reason = f"its package {point.value} cannot be imported: {located(error)}"
    _broken.append(f"{point.name}: {reason}")
    if not registered:
        # That of another dialect's may be the error.
        taken = point.name in DIALECTS or point.name in OPERATORS
        name = re.sub(r"\W", "_", point.value if taken else point.name)
        while name in DIALECTS or not name.isidentifier():
            name = f"_{name}"
        _absent[0](name, reason)
    for name in registered:
        DIALECTS[name].unavailable = reason


def _not_imported() -> str:
    """Return which packages announce a dialect and cannot be imported: what is asked for may be
    theirs.
    """
    return "\n  ".join(_broken)


DIALECTS.finders.append(discover)
DIALECTS.also = OPERATORS.also = _not_imported


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
