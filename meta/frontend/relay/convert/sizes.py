"""`Sizes`: how much a tuple or a data value holds. A program of few lines may double it in each.

A value is a tree here, while the program that makes it is a DAG: ``%1 = (%0, %0)``, ``%2 = (%1,
%1)`` and so on. Whatever walks a value relies on these bounds.
"""

from __future__ import annotations

from typing import Any

from meta.frontend.relay.convert.context import Context
from meta.frontend.relay.convert.values import OpenData
from meta.ir.literals import MAX_NESTING

MAX_LEAVES = 1 << 14
"""A value of more leaves is refused, as one that nests deeper than a tuple of the IR may."""


class Sizes:
    """The sizes of the values of one conversion, by identity; each is computed once."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._known: dict[int, tuple[Any, int, int]] = {}

    def bounded(self, value: Any) -> Any:
        """Return a value; RelayError for one that holds too much, or nests too deep."""
        leaves, depth = self._of(value)
        if leaves > MAX_LEAVES:
            raise self.context.error(
                "a tuple or data value holds too much",
                expected=f"at most {MAX_LEAVES} values in all",
                found=leaves,
            )
        if depth > MAX_NESTING:
            raise self.context.error(
                "tuples or data values are nested too deep",
                expected=f"at most {MAX_NESTING} levels",
                found=depth,
            )
        return value

    def _of(self, value: Any) -> tuple[int, int]:
        """Return the number of leaves and the depth; the fields' own are within bounds."""
        if not isinstance(value, tuple | OpenData):
            return 1, 0
        known = self._known.get(id(value))
        if known is None:
            fields = value.fields if isinstance(value, OpenData) else value
            parts = [self._of(f) for f in fields]
            leaves = 1 + sum(n for n, _ in parts)
            depth = 1 + max((d for _, d in parts), default=0)
            # The value is kept, so that its id stays its own.
            known = self._known[id(value)] = (value, leaves, depth)
        return known[1:]
