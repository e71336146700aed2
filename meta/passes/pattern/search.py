"""Whether a value is what a pattern describes, and where the one call that takes its place may
stand.

The search is depth first, over the ways of a pattern's parts. Choices (alternatives, exchanged
arguments) are tried in the order in which the parts state them; a part that was met before has to
be the same value again. The stack is explicit, so a pattern may be long.

Calls of one result stand where it was computed. Several results may be used before the last of them
is there, so their call has to come earlier: after everything that the match reads, and before all
that use its results. Places are positions in the block, and numbers between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from math import ceil
from typing import Any

from meta.ir import (
    Binding,
    Block,
    Constant,
    DefUse,
    Expr,
    Function,
    Module,
    Var,
    bindings,
    operands,
    structural_equal,
)
from meta.ir.graph import User
from meta.ir.literals import literal_text
from meta.ir.printer import variable_names
from meta.ir.visit import inner_blocks
from meta.passes.buffers import Buffers, Summaries
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


class Places:
    """The positions in one block, as matches that were found move them."""

    def __init__(self, block: Block, uses: DefUse) -> None:
        self.block, self.uses = block, uses
        self.position: Mapping[Binding, int] = {b: i for i, b in enumerate(block.bindings)}
        self._moved: dict[Binding, float] = {}
        self._outer: dict[User, Binding] = {}
        for binding in block.bindings:
            for inner in inner_blocks(binding.value):
                self._outer[inner] = binding
                for nested in bindings(inner):
                    self._outer[nested] = binding
                    self._outer.update(dict.fromkeys(inner_blocks(nested.value), binding))

    def of(self, user: User) -> float:
        """Return where a binding is evaluated, or one of the block in which it is nested; the end
        for the block's result.
        """
        user = self._outer.get(user, user)
        if isinstance(user, Block):
            return len(self.block.bindings)
        return self._moved.get(user, self.position[user])

    def find(
        self, members: tuple[Binding, ...], inside: set[Binding], results: tuple[Binding, ...]
    ) -> float | None:
        """Return where the call of a match can be, None if nowhere.

        ``members``: what it computes; those ``inside`` are there nowhere else. ``results``: those
        that others may use.
        """
        last = max(self.position[b] for b in inside)
        if len(results) == 1:
            return last
        used = (u for r in results for u in self.uses.users(r.var) if u not in inside)
        end = min(map(self.of, used), default=len(self.block.bindings))
        if last < end:
            return last
        read = (a for b in members for a in operands(b.value) if isinstance(a, Var))
        sources = {self.uses.definitions[a] for a in read if a in self.uses.definitions}
        begin = max(
            (self.of(s) for s in sources if s in self.position and s not in members), default=-1.0
        )
        begin = max(begin, ceil(end) - 1)
        return (begin + end) / 2 if begin < end else None

    def move(self, inside: set[Binding], place: float) -> None:
        """Note where the results of a match are computed from now on."""
        self._moved.update(dict.fromkeys(inside, place))


class Facts:
    """Facts of one function of a module (None: nothing is known of other functions)."""

    def __init__(self, function: Function, module: Module | None) -> None:
        self.function, self.module = function, module

    @cached_property
    def buffers(self) -> Buffers:
        """Which values may share memory."""
        summaries = None if self.module is None else Summaries(self.module)
        return Buffers(self.function, summaries)

    @cached_property
    def uses(self) -> DefUse:
        """Who uses what."""
        return DefUse(self.function)

    @cached_property
    def names(self) -> dict[Var, str]:
        """The names under which variables are printed."""
        return variable_names(self.function)
