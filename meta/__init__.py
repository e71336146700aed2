"""`meta`: every tensor operator on the best backend at hand.

``meta.<name>`` is the base operator, or the function composed of operators, of that name (see
`meta.op`). Importing is light: backends load when first used.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from typing import Any

from meta.base.aliases import MODULE
from meta.base.did_you_mean import MissingModules
from meta.base.errors import PlatformError, UnknownName
from meta.base.registry import OPERATORS

__version__ = "0.1.0"


def _reads_command_line() -> bool:
    """Whether Python is looking for the module of `python -m meta`, with "-m" as first argument.

    The command line is read without the rest of the package, which imports torch and takes more
    than a second; `meta.cli.main` then reloads this module.
    """
    given = sys.orig_argv
    return sys.argv[:1] == ["-m"] and given[given.index("-m") + 1] == "meta"


if sys.platform == "win32":
    raise PlatformError(
        "meta does not run on Windows",
        expected="Linux on x86-64 or aarch64",
        found=sys.platform,
        hint="in the Windows Subsystem for Linux (`wsl --install`), install it as on Linux",
    )
if not any(isinstance(finder, MissingModules) for finder in sys.meta_path):
    sys.meta_path.append(MissingModules())
if not _reads_command_line():
    from meta.namespace import *  # noqa: F403
    from meta.namespace import __all__ as __all__


def __getattr__(name: str) -> Any:
    if name.startswith("_"):  # asked for by debuggers and test runners, often
        raise AttributeError(name)
    if PathFinder.find_spec(f"{__name__}.{name}", globals()["__path__"]) is not None:
        # The import statement asks for the attribute before it imports the module.
        raise UnknownName(f"meta.{name} is not imported yet", hint=f"import meta.{name}")
    for module in ("model", "optim", "train", "random", "linalg", "grad", "vm"):
        if name in globals()[module].__all__ and name not in MODULE:
            raise UnknownName(f"meta has no {name!r}", hint=f"write meta.{module}.{name}")
    return OPERATORS[name]  # raises UnknownName, which is an AttributeError: what it is called
