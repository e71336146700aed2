"""Unique, legal names for variables, whose own names are only hints."""

from __future__ import annotations

import re

_ILLEGAL = re.compile(r"[^A-Za-z0-9_]")


class Names:
    """Hands out names that differ from each other.

    A hint is kept where it is free; else a number is appended. An empty or numeric hint means
    "unnamed" and gives the next number, so names that were read from a text come out again.
    """

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._next: dict[str, int] = {}

    def unique(self, hint: str) -> str:
        """Return a new name of letters, digits and underscores, close to ``hint``."""
        base = _ILLEGAL.sub("_", hint)
        if not base or base.isdigit():
            number = self._next[""] = self._next.get("", -1) + 1
            return str(number)
        name = base
        while name in self._used:
            number = self._next[base] = self._next.get(base, 0) + 1
            name = f"{base}_{number}"
        self._used.add(name)
        return name
