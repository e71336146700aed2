"""Imports that follow others: what speaks to another package is imported once that one is."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Follow(MetaPathFinder):
    """A finder that imports ``own`` behind ``other``, and finds nothing itself."""

    def __init__(self, other: str, own: str) -> None:
        self.other, self.own = other, own

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of the other module, whose execution ends with the import of our own."""
        if fullname != self.other:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((s for s in specs if s is not None and s.loader is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_follow(module: ModuleType) -> None:
                execute(module)
                sys.meta_path.remove(self)
                import_module(self.own)

            spec.loader.exec_module = execute_and_follow  # type: ignore[method-assign]
        return spec


def import_after(other: str, own: str) -> None:
    """Import the module ``own`` once the module ``other`` is imported; now, if it is."""
    if other in sys.modules:
        import_module(own)
    else:
        sys.meta_path.insert(0, _Follow(other, own))
