"""Layouts that TVM's auto-scheduler writes: "4N32C2c" lists extents, each with the axis's name.

A name has letters only. An axis that the target splits stands there several times, outermost first.
"""

from __future__ import annotations

import re
from math import prod
from typing import Any

from meta import op
from meta.frontend.core import Unconvertible

_AXIS = re.compile(r"([0-9]{1,12})([A-Za-z]+)")


def _read(layout: str) -> list[tuple[int, str]]:
    found = list(_AXIS.finditer(layout))
    if not found or "".join(m[0] for m in found) != layout:
        raise Unconvertible(f"{layout!r} is no layout of the auto-scheduler", hint='"4N32C"')
    return [(int(m[1]), m[2]) for m in found]


def change_tuning_layout(x: Any, source: str, target: str) -> Any:
    """Return a tensor in another layout. Axes of the source are whole."""
    old, new = _read(source), _read(target)
    names = [name for _, name in old]
    extents = [[d for d, n in new if n == name] for name in names]
    fits = all(prod(e) == d for e, (d, _) in zip(extents, old, strict=True) if e)
    if len(set(names)) != len(names) or {n for _, n in new} != set(names) or not fits:
        raise Unconvertible(f"the layouts {source!r} and {target!r} do not fit each other")
    x = op.reshape(x, tuple(d for e in extents for d in e))
    places: dict[str, list[int]] = {}
    at = 0
    for name, parts in zip(names, extents, strict=True):
        places[name] = list(range(at, at + len(parts)))
        at += len(parts)
    order = tuple(places[name].pop(0) for _, name in new)
    return x if order == tuple(range(at)) else op.transpose(x, order)
