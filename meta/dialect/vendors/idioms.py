"""What files in FlagGems' layout import: `spoken`.

Such a file says ``from backend_utils import VendorInfoBase`` and ``from flag_gems import runtime``.
The modules that it means are there while the files of a vendor are imported and while its functions
run, and are gone afterwards. `flaggems/` has what they hold; another name is unavailable
(`imports.py`). A `flag_gems` that is installed is left alone.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import ModuleType
from typing import Any

from meta.dialect.vendors import flaggems
from meta.dialect.vendors.imports import FolderFinder, UnavailableName, packages
from meta.dialect.vendors.reading import CURRENT, Launches, reading

FLAG_GEMS, BACKEND = "flag_gems", "flag_gems.runtime.backend"
TOP = (FLAG_GEMS, "backend_utils")


_lock = threading.RLock()
_depth = 0
_modules: dict[str, ModuleType] = {}
"""Modules of the idiom by name, those that were imported before."""
_aliases: set[str] = set()
"""Names of FlagGems' by which modules of a vendor's folder were imported."""
_hidden: dict[str, ModuleType] = {}
"""What others have in `sys.modules` by these names, while ours are there."""


@contextmanager
def spoken(launches: Launches | None = None) -> Iterator[None]:
    """Let the modules of FlagGems' idiom be importable in a ``with`` block, and the vendors' as
    `imports.py` says. ``launches``: the folder that is imported, or runs.
    """
    global _depth
    with _lock:  # sys.modules is everybody's
        if not _depth:
            _enter()
        _depth += 1
    token = CURRENT.set(launches)
    try:
        yield
    finally:
        CURRENT.reset(token)
        with _lock:
            _depth -= 1
            if not _depth:
                _leave()


def _is_ours(name: str) -> bool:
    root = name.partition(".")[0]
    return root == "backend_utils" or (root == FLAG_GEMS and not _has_flag_gems())


def _enter() -> None:
    other = sys.modules.pop("backend_utils", None)
    if other is not None:
        _hidden["backend_utils"] = other
    installed = _has_flag_gems()
    for name, module in _modules.items():
        if not installed or name == "backend_utils":
            sys.modules[name] = module
    sys.meta_path.insert(0, _finder)


def _leave() -> None:
    sys.meta_path.remove(_finder)
    for name, module in _modules.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
    for name in _aliases:
        sys.modules.pop(name, None)
    sys.modules.update(_hidden)
    _hidden.clear()


def _has_flag_gems() -> bool:
    module = sys.modules.get(FLAG_GEMS)
    if module is not None:
        return module is not _modules.get(FLAG_GEMS)
    return _is_installed(tuple(sys.path))


@lru_cache(maxsize=8)
def _is_installed(path: tuple[str, ...]) -> bool:
    others = [finder for finder in sys.meta_path if finder is not _finder]
    return any(finder.find_spec(FLAG_GEMS, None) is not None for finder in others)


def _idiom(name: str) -> ModuleType | None:
    """Return the module of the idiom of a name."""
    if name.partition(".")[0] not in TOP or not _is_ours(name):
        return None
    found = _modules.get(name)
    if found is not None:
        return found
    if not flaggems.has_module(name):
        raise UnavailableName(f"needs {name}, which meta does not have")
    # Triton before 3.7 takes modules in kernels that are exactly of Python's class.
    found = (_Idiom if name in _FUNCTIONS_FIRST else ModuleType)(name)
    found.__path__ = []

    def get(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}")
        try:
            return flaggems.attribute(name, attribute)
        except AttributeError:
            if f"{name}.{attribute}" in flaggems.MODULES:
                return importlib.import_module(f"{name}.{attribute}")
            raise

    vars(found)["__getattr__"] = get
    _modules[name] = found
    return found


class _Idiom(ModuleType):
    """A module that has the function where a module within it has the same name, as ``libentry``
    of ``flag_gems.utils``.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not isinstance(value, ModuleType):
            super().__setattr__(name, value)


_FUNCTIONS_FIRST = (FLAG_GEMS, f"{FLAG_GEMS}.utils")


def _alias(name: str) -> str | None:
    """Return the module of the folder that goes by a name such as
    ``flag_gems.runtime.backend._acme.ops``.
    """
    own = reading()
    if own is None or not name.startswith(f"{BACKEND}._"):
        return None
    folder = packages.get(own.package.__name__)
    rest = name.removeprefix(f"{BACKEND}.").split(".")
    if folder is None or rest[0] != folder.name or rest[0] == "_state":
        return None
    _aliases.add(name)
    return ".".join((own.package.__name__, *rest[1:]))


_finder = FolderFinder(_idiom, _alias)
