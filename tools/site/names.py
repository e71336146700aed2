"""What the reference shows: the modules that users import, and their functions and classes."""

from __future__ import annotations

import inspect
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from meta.base.registry import FUNCTIONS

ELSEWHERE = ("meta.interop.torch", "meta.testing")  # which `meta` does not import


def public_modules() -> dict[str, ModuleType]:
    """Return the modules that users import, by name: `meta`, what it shows, and what these show."""
    found: dict[str, ModuleType] = {}
    waiting = [(name, import_module(name)) for name in ("meta", *ELSEWHERE)]
    for name, module in waiting:
        found[name] = module
        inner = ((f"{name}.{n}", getattr(module, n)) for n in public_names(module))
        known = [m for _, m in waiting]
        waiting += [(n, m) for n, m in inner if isinstance(m, ModuleType) and m not in known]
    return dict(sorted(found.items()))


def public_names(module: ModuleType) -> list[str]:
    """Return what a module exports: its ``__all__``, else what it defines."""
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    own = [n for n, o in vars(module).items() if getattr(o, "__module__", "") == module.__name__]
    return sorted(n for n in own if not n.startswith("_"))


@cache
def public_objects() -> dict[str, Any]:
    """Return the functions and classes that modules show, by name. One that several modules show
    is there once, with the innermost of them. Operators are not among them.
    """
    found = {f"meta.{name}": FUNCTIONS[name] for name in FUNCTIONS}
    known = set(map(id, found.values()))
    for name, module in reversed(public_modules().items()):
        for public in public_names(module):
            thing = getattr(module, public)
            if has_source(thing) and id(thing) not in known:
                known.add(id(thing))
                found[f"{name}.{public}"] = thing
    return found


def has_source(thing: Any) -> bool:
    """Whether it is a function or a class of the package, and no constant."""
    is_code = inspect.isclass(thing) or inspect.isroutine(inspect.unwrap(thing))
    return is_code and thing.__module__.split(".")[0] == "meta"


def is_made(thing: Any) -> bool:
    """Whether another function makes this one, with its docstring."""
    code = getattr(inspect.unwrap(thing), "__code__", None)
    return code is not None and code.co_name != thing.__name__
