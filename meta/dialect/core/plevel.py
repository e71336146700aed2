"""Priority levels of dialect operators. Among those that accept a call, the largest level wins.

A level holds for all devices of a dialect, or is stated per kind of device:
``plevel={"cpu": LIBRARY}`` leaves the dialect's own level to the others.

Levels that were decided by measurement are data, `TABLE`: the benchmark ``levels.py`` writes that
file, with what it measured, on which device and when.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import IntEnum
from functools import cache
from pathlib import Path


class PLevel(IntEnum):
    """Named levels; a dialect operator may also take a number between two of them."""

    FUSED_ONLY = 0  # only as part of a fused pattern, never alone
    REFERENCE = 5  # right, and the last resort
    COMPILER = 10  # generated code
    LIBRARY = 15  # a vendor's or a well-kept library's kernel
    HANDWRITTEN = 20  # written for exactly this operator


FUSED_ONLY, REFERENCE, COMPILER, LIBRARY, HANDWRITTEN = PLevel

Levels = int | Mapping[str, int]
"""How a level is stated: one number, or one for each kind of device that differs."""

TABLE = Path(__file__).parents[1] / "levels.json"


@cache
def from_table() -> Mapping[str, Mapping[str, Mapping[str, int]]]:
    """Return the levels of `TABLE` by dialect, operator or pattern, and kind of device."""
    found: dict[str, dict[str, dict[str, int]]] = json.loads(TABLE.read_text("utf-8"))["levels"]
    return found


def by_device(stated: Levels | None, default: int, devices: tuple[str, ...]) -> dict[str, int]:
    """Return the level on each kind of device of a dialect.

    ``default`` holds where nothing is stated.
    """
    if not isinstance(stated, Mapping):
        return dict.fromkeys(devices, default if stated is None else stated)
    return {kind: stated.get(kind, default) for kind in devices}


def level_text(levels: Mapping[str, int]) -> str:
    """Return levels as text: "library 15", or "library 15 on cpu, reference 5 on cuda"."""
    distinct = set(levels.values())
    if len(distinct) == 1:
        return _named(distinct.pop())
    return ", ".join(f"{_named(level)} on {kind}" for kind, level in levels.items())


def _named(level: int) -> str:
    name = PLevel(level).name.lower() if level in list(PLevel) else ""
    return f"{name} {int(level)}".strip()
