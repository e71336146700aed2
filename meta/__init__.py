"""`meta`: every tensor operator on the best backend at hand.

``meta.<name>`` is the base operator, or the function composed of operators, of that name (see
`meta.op`). Importing takes milliseconds: the rest of the package, and torch, are imported when
something of them is named. A process that loads a saved program (`meta.vm.load`) imports what runs
it, and neither passes nor gradients, models, importers, nor a compiler.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module
from importlib.machinery import PathFinder
from typing import Any

from meta.base.after_import import import_after
from meta.base.aliases import MODULE
from meta.base.call_context import Default
from meta.base.did_you_mean import MissingModules
from meta.base.errors import PlatformError, UnknownName
from meta.base.gc_pause import gc_paused
from meta.base.registry import FUNCTIONS, OPERATORS

__version__ = "0.1.0"


if sys.platform == "win32":
    raise PlatformError(
        "meta does not run on Windows",
        expected="Linux on x86-64 or aarch64",
        found=sys.platform,
        hint="in the Windows Subsystem for Linux (`wsl --install`), install it as on Linux",
    )
if not any(isinstance(finder, MissingModules) for finder in sys.meta_path):
    sys.meta_path.append(MissingModules())
import_after("einops._backends", "meta.interop.einops")

_ARRAYS = "meta.runtime.ndarray"
_LIGHT = {
    **dict.fromkeys(("array", "asarray", "from_dlpack", "ndarray"), _ARRAYS),
    **dict.fromkeys(("get_num_threads", "set_num_threads"), "meta.runtime.num_threads"),
    "MetaError": "meta.base.errors",
}
"""What a process that runs saved programs names besides `vm`, and where it is defined."""

_ALONE = ("distributed", "fft", "linalg", "op", "optim", "passes", "random", "vm")
"""Parts that are imported without the others: `vm`, and what our files import from here."""
_import = gc_paused()(import_module)


def _complete() -> None:
    """Import all that the package shows."""
    _import("meta.namespace")


def _first_call(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an eager call; what runs them from now on is imported with the rest of the package."""
    _complete()
    return Default.handler(op, args, kwargs)


Default.handler, Default.complete = _first_call, _complete
OPERATORS.rest = FUNCTIONS.rest = partial(import_module, "meta.op")
OPERATORS.finders.append(_complete)


def __dir__() -> list[str]:
    _complete()
    return sorted(globals())


def __getattr__(name: str) -> Any:
    shown = globals()
    if name.startswith("_") and name != "__all__":  # asked for by debuggers and test runners, often
        raise AttributeError(name)
    if name in _LIGHT:
        if _LIGHT[name] == _ARRAYS:
            _import("meta.op")  # arrays have its operators as methods
        found = shown[name] = getattr(import_module(_LIGHT[name]), name)
        return found
    if PathFinder.find_spec(f"{__name__}.{name}", shown["__path__"]) is not None:
        if name not in _ALONE:
            _complete()  # with the parts of this part
        return _import(f"{__name__}.{name}")
    if "__all__" not in shown:
        _complete()
        if name in shown:
            return shown[name]
    if name == "__all__":  # while the namespace is being imported
        raise AttributeError(name)
    for module in ("model", "optim", "train", "random", "linalg", "grad", "vm"):
        if name in shown[module].__all__ and name not in MODULE:
            raise UnknownName(f"meta has no {name!r}", hint=f"write meta.{module}.{name}")
    return OPERATORS[name]  # raises UnknownName, which is an AttributeError: what it is called
