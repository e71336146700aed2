"""Finds and loads `OpCase` records: the family files ``tests/op/*.py``, no family listed by hand.

A source checkout has them beside the package; an installed one carries them in
``meta/testing/cases``. They import one another as ``tests.op.<family>``, wherever they lie. Another
package announces the records of its operators by an entry point of the group "meta.cases".
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from meta.base.errors import ArgumentError
from meta.base.registry import announced
from meta.testing.case import OpCase

PACKAGE = "tests.op"
GROUP = "meta.cases"
FOLDERS = (Path(__file__).parent / "cases", Path(__file__).parents[2] / "tests" / "op")
"""Where records are looked for: in an installed package, in a checkout."""


def cases_folder(given: str | None = None) -> Path:
    """Return the folder of the records; ArgumentError if there are none."""
    for place in [Path(given).resolve()] if given is not None else FOLDERS:
        if place.is_dir() and families(place):
            return place
    raise ArgumentError(
        "there are no operator cases",
        expected="a folder of files that define CASES, as tests/op of the source",
        found=given or "none beside or inside of the package",
        hint="get the source and name its folder: --cases PATH/tests/op",
    )


def families(folder: Path) -> list[str]:
    """Return the names of the family files in a folder."""
    return sorted(
        p.stem
        for p in folder.glob("*.py")
        if not p.stem.startswith(("test_", "_")) and p.stem != "records"
    )


def load_cases(folder: Path) -> list[OpCase]:
    """Return the records of all family files in a folder.

    Raises ArgumentError for a file without them, and for one whose name a file of another folder,
    loaded before, has taken.
    """
    package = sys.modules.get(PACKAGE)
    if package is None:
        package = sys.modules[PACKAGE] = ModuleType(PACKAGE)
        package.__path__ = []
    if str(folder) not in package.__path__:
        package.__path__.append(str(folder))
    found: list[OpCase] = []
    for name in families(folder):
        module = import_module(f"{PACKAGE}.{name}")
        if Path(str(module.__file__)).parent != folder:
            raise ArgumentError(
                f"there is another file of cases named {name}",
                found=module.__file__,
                expected=str(folder / f"{name}.py"),
                hint="give it another name",
            )
        if not hasattr(module, "CASES"):
            raise ArgumentError(
                "this file has no cases: it defines no CASES", found=module.__file__
            )
        found += module.CASES
    return found


def announced_cases() -> list[OpCase]:
    """Return the records that installed packages announce.

    Raises ArgumentError for an entry point that is no collection of records; what the import of a
    package raises is raised.
    """
    found: list[OpCase] = []
    for point in announced(GROUP):
        cases = point.load()
        if not isinstance(cases, list) or not all(isinstance(c, OpCase) for c in cases):
            raise ArgumentError(
                f"the entry point {point.name!r} of the group {GROUP!r} is no list of records",
                found=point.value,
                expected="PACKAGE:CASES, where CASES is a list of meta.testing.OpCase",
            )
        found += cases
    return found
