"""Did you mean: the error for a name that a module has not, with the name that it has here.

Modules ask `unknown_attribute` in their ``__getattr__``. The import statement drops what that says,
and asks a finder instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.abc import MetaPathFinder
from typing import Any

from meta.base.aliases import BY_MODULE
from meta.base.errors import MetaError, UnknownName
from meta.base.registry import nearest


def unknown_attribute(module: str, name: str, known: Iterable[str]) -> AttributeError:
    """Return the error for an attribute that a module has not, with what to write instead."""
    if name.startswith("__"):
        return AttributeError(name)
    hint = nearest(name, known, BY_MODULE.get(module, {}))
    return UnknownName(f"{module} has no {name!r}", hint=hint)


class UnknownModule(MetaError, ModuleNotFoundError):
    """A module that is imported from habit."""


class MissingModules(MetaPathFinder):
    """A finder, last in line, that says what ``import meta.nn`` and ``from meta import nn`` are."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        """Raise UnknownModule for a name in `BY_MODULE`."""
        module, _, name = fullname.rpartition(".")
        table = BY_MODULE.get(module, {})
        if name in table:
            raise UnknownModule(f"{module} has no {name!r}", hint=nearest(name, (), table))
