"""Which dialects there are: those shipped in `meta/dialect/`, and those that other packages
announce.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from meta.base.registry import Registry
from meta.ir.operators import OP_RESOLVERS

DIALECTS: Registry[Any] = Registry("dialect")
GROUP = "meta.dialects"


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
    """Import the packages that announce a dialect; an error of one is raised each time."""
    failure = _failure()
    if failure is not None:
        raise failure


@cache
def _failure() -> Exception | None:
    """Import the packages; return the first error.

    It is kept, because a second import would only say that what was registered before the error is
    registered twice.
    """
    try:
        for point in entry_points(group=GROUP):
            point.load()
    except Exception as error:
        return error
    return None


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
