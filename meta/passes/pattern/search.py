"""Whether a value is what a pattern describes: a depth-first search over the ways of its parts.

Choices (alternatives, exchanged arguments) are tried in the order in which the parts state them; a
part that was met before has to be the same value again. The stack is explicit, so a pattern may be
long.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meta.ir import Constant, Expr, structural_equal
from meta.ir.literals import literal_text
from meta.passes.pattern.parts import Called, Part, Scope

Found = dict[Part, Any]
"""What each part of the pattern is: an atom or a literal."""


class Search:
    """One search for one part.

    Attributes
    ----------
    failure: where the search that got furthest failed, once it has ended without a solution.
    calls: how many calls of the pattern had been found by then.
    """

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.failure = ""
        self.calls = 0

    def solutions(self, part: Part, value: Any, known: Found | None = None) -> Iterator[Found]:
        """Yield what the parts are, for every way in which ``value`` can be ``part``; ``known`` are
        those that are found already.
        """
        # A state is a linked list of goals, the next one first, and what was found so far.
        stack: list[tuple[Any, Found]] = [((part, value, None), known or {})]
        while stack:
            goals, found = stack.pop()
            if goals is None:
                yield found
                continue
            part, value, rest = goals
            if part in found:
                if _same(found[part], value):
                    stack.append((rest, found))
                else:
                    both = map(self.scope.shown, (value, found[part]))
                    self._fail(found, " is not the same as ".join(both))
                continue
            ways = part.ways(value, self.scope)
            if isinstance(ways, str):
                self._fail(found, ways)
                continue
            found = {**found, part: value}
            for way in reversed(ways):
                goals = rest
                for inner_part, inner_value in reversed(way):
                    goals = (inner_part, inner_value, goals)
                stack.append((goals, found))

    def _fail(self, found: Found, reason: str) -> None:
        calls = sum(isinstance(part, Called) for part in found)
        if calls > self.calls or not self.failure:
            self.calls, self.failure = calls, reason


def _same(a: Any, b: Any) -> bool:
    """Tell whether two atoms or literals are one value for sure."""
    if isinstance(a, Constant) and isinstance(b, Constant):
        return structural_equal(a, b)
    if isinstance(a, Expr) or isinstance(b, Expr):
        return a is b
    return literal_text(a) == literal_text(b)
