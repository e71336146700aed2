"""How many calls of functions a program makes when it runs: a chain of functions that each call the
one before twice makes 2^n. A few lines say so, and neither a compiler nor a run comes to an end.
"""

from __future__ import annotations

from collections.abc import Mapping

from meta.ir import Block, Call, Function, GlobalVar, If

MOST_CALLS = 1 << 20
"""Calls of functions that one call of a function may lead to."""
MOST_INLINED = 1 << 14
"""Calls that may be replaced by the body of what they call."""


class Expansion:
    """The calls that functions of a program lead to, counted once for each. Of the branches of an
    `If` the one with more counts. A function that calls itself counts once: how often it does is
    not known before it runs.
    """

    def __init__(self, functions: Mapping[str, Function]) -> None:
        self._functions = functions
        self._counts: dict[str, int] = {}

    def calls(self, name: str) -> int:
        """Return how many calls one call of a function is, itself included."""
        if name not in self._counts:
            if name not in self._functions:
                return 1  # it is under way
            self._counts[name] = 1
            self._counts[name] = 1 + self._within(self._functions[name].body)
        return self._counts[name]

    def _within(self, block: Block) -> int:
        count = 0
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, Call) and isinstance(value.callee, GlobalVar):
                count += self.calls(value.callee.name)
            elif isinstance(value, If):
                count += max(self._within(value.then_block), self._within(value.else_block))
        return count
