"""Where a pattern occurs in a function, and why it does not where it nearly does.

The search is depth first, over the ways of a pattern's nodes. Choices (alternatives, exchanged
arguments) are tried in the order in which the nodes state them; a node that was met before has to
be the same value again. The stack is explicit, so a pattern may be long.

A match has the calls that its pattern needs: the search begins at what is computed of them
(`scope.py`). One for an explanation begins wherever the pattern's last step can be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Any

from meta import op
from meta.base.errors import ArgumentError
from meta.dialect.core.ir_calls import base_op, called_op, is_pure
from meta.ir import (
    Binding,
    Block,
    Call,
    Constant,
    Effect,
    Expr,
    Function,
    Module,
    Var,
    operands,
    structural_equal,
)
from meta.ir.literals import literal_text
from meta.ir.printer import first_line
from meta.ir.visit import User, nested_bindings, uses
from meta.passes.liveness import fused_function
from meta.passes.pattern.build import Pattern
from meta.passes.pattern.nodes import Assignment, Called, Node, depth, of_type, walk_nodes
from meta.passes.pattern.scope import BlockScope, Facts


class Search:
    """One search for one node.

    failure: where the search that got furthest failed, once it has ended without a solution.
    calls: how many calls of the pattern had been found by then.
    """

    def __init__(self, scope: BlockScope) -> None:
        self.scope = scope
        self.failure = ""
        self.calls = 0

    def solutions(
        self, node: Node, value: Any, known: Assignment | None = None
    ) -> Iterator[Assignment]:
        """Yield what the nodes are, for every way in which ``value`` can be ``node``."""
        # A state is a linked list of goals, the next one first, what was found so far, and how many
        # calls are among it.
        calls = sum(isinstance(one, Called) for one in known or ())
        stack: list[tuple[Any, Assignment, int]] = [((node, value, None), known or {}, calls)]
        while stack:
            goals, found, calls = stack.pop()
            if goals is None:
                yield found
                continue
            node, value, rest = goals
            if node in found:
                if _same(found[node], value):
                    stack.append((rest, found, calls))
                else:
                    both = map(self.scope.shown, (value, found[node]))
                    self._fail(calls, " is not the same as ".join(both))
                continue
            ways = node.ways(value, self.scope, found)
            if isinstance(ways, str):
                self._fail(calls, ways)
                continue
            found = {**found, node: value}
            calls += isinstance(node, Called)
            for way in reversed(ways):
                goals = rest
                for inner_node, inner_value in reversed(way):
                    goals = (inner_node, inner_value, goals)
                stack.append((goals, found, calls))

    def _fail(self, calls: int, reason: str) -> None:
        if calls > self.calls or not self.failure:
            self.calls, self.failure = calls, reason


def _same(a: Any, b: Any) -> bool:
    """Tell whether two atoms or literals are one value for sure."""
    if isinstance(a, Constant) and isinstance(b, Constant):
        return structural_equal(a, b)
    if isinstance(a, Expr) or isinstance(b, Expr):
        return a is b
    return literal_text(a) == literal_text(b)


@dataclass(frozen=True, eq=False)
class Match:
    """An occurrence of a pattern.

    members: the bindings that compute it, in the order of their block.
    captures: by name an atom, a literal in the place of an attribute, or None for what belongs to
    an alternative that was not taken.
    results: the bindings whose values the pattern describes, in its order.
    replaced: the members that are not needed once a call computes the results; others are views
    that are also used elsewhere. place: where the call may stand, a position in the members' block
    or a number between two.
    """

    pattern: Pattern
    members: tuple[Binding, ...]
    captures: dict[str, Any]
    results: tuple[Binding, ...]
    replaced: frozenset[Binding]
    place: float

    @property
    def root(self) -> Binding:
        """The last binding; the result of a pattern that has one."""
        return self.members[-1]

    @cached_property
    def types(self) -> dict[str, Any]:
        """The captures with every atom replaced by its type."""
        return {name: of_type(value) for name, value in self.captures.items()}


@dataclass(frozen=True, eq=False)
class Refusal:
    """A binding that begins like the pattern's result and is no match, and why."""

    binding: Binding
    reason: str


def match(
    pattern: Pattern,
    function: Function,
    *,
    module: Module | None = None,
    shared: bool = False,
    writing: bool = False,
    facts: Facts | None = None,
) -> list[Match]:
    """Return the occurrences of a pattern, in program order; no binding belongs to two.

    Bindings of one block only make a match. Where matches overlap, the one whose result is computed
    last is taken. These are refused, for their bindings could not become one:

    - an inner value that is used outside, unless ``shared``, or a view or a split of what the match
      reads;
    - several results of which one is needed before the values are there of which another is made;
    - a call that writes an argument, unless ``writing``, or a random one;
    - a write, between the bindings, to what one of them reads, and a use of what one writes;
    - whatever the pattern's check refuses.

    A call of a global function may write its arguments, unless ``module`` is given and tells that
    it does not. ``facts``: those of the function, if they are known from another search.
    """
    known = facts or Facts(function, module)
    return _Finder(pattern, known, shared, writing, complete=False).matches()


def refusals(
    pattern: Pattern, function: Function, *, module: Module | None = None, shared: bool = False
) -> list[Refusal]:
    """Return what `match` refuses, in program order."""
    finder = _Finder(pattern, Facts(function, module), shared, writing=False)
    finder.matches()
    return finder.refused[::-1]


def explain(
    pattern: Pattern,
    function: Function,
    *,
    module: Module | None = None,
    shared: bool = False,
    writing: bool = False,
) -> str:
    """Return the matches of a pattern, and the refused candidates with reasons, as text."""
    finder = _Finder(pattern, Facts(function, module), shared, writing)
    found = finder.matches()
    lines = [f"{pattern.name}: {len(found)} matched, {len(finder.refused)} refused"]
    lines += [f"  matched  {first_line(function, m.root)}" for m in found]
    for refusal in reversed(finder.refused):
        lines += [f"  refused  {first_line(function, refusal.binding)}", f"    {refusal.reason}"]
    return "\n".join(lines)


class _Finder:
    """complete: whether to note why others are no matches."""

    def __init__(
        self, pattern: Pattern, facts: Facts, shared: bool, writing: bool, complete: bool = True
    ) -> None:
        self.pattern, self.facts, self.complete = pattern, facts, complete
        self.shared, self.writing = shared, writing
        self.taken: set[Binding] = set()
        self.refused: list[Refusal] = []

    def matches(self) -> list[Match]:
        found: list[Match] = []
        for block in reversed(self.facts.blocks):
            if not self.complete and not self.pattern.operators <= self.facts.calls(block).keys():
                continue
            scope = BlockScope(block, self.facts, self.complete)
            for binding in reversed(scope.candidates(self.pattern.searched[0])):
                one = None if binding in self.taken else self.at(binding, scope)
                if one is not None:
                    self.taken |= one.replaced
                    scope.places.move(one.replaced, one.place)
                    found.append(one)
        return found[::-1]

    def at(self, binding: Binding, scope: BlockScope) -> Match | None:
        """Return the match whose first result is a binding's; else note the first reason."""
        search = Search(scope)
        reason = None
        for found in self.solutions(search, binding, scope):
            one = self.made(found, scope)
            if one is None:
                continue
            problem = one if isinstance(one, str) else self.problem(one, scope)
            if problem is None and isinstance(one, Match):
                return one
            reason = reason or problem
        if reason is None and search.calls:
            reason = search.failure
        if reason is not None and self.complete:
            self.refused.append(Refusal(binding, reason))
        return None

    def solutions(
        self, search: Search, binding: Binding, scope: BlockScope
    ) -> Iterator[Assignment]:
        """Yield what the nodes are where the first result is a binding's."""
        first, *others = self.pattern.searched
        for found in search.solutions(first, binding.var):
            yield from self.with_others(search, others, found, scope)

    def with_others(
        self, search: Search, others: list[Node], found: Assignment, scope: BlockScope
    ) -> Iterator[Assignment]:
        """Yield what is found with the other results: near what they share with those before."""
        if not others:
            yield found
            return
        node, *rest = others
        values = [found[node]] if node in found else self.near(node, found, scope)
        for value in values:
            for more in [found] if node in found else search.solutions(node, value, found):
                yield from self.with_others(search, rest, more, scope)

    def near(self, node: Node, found: Assignment, scope: BlockScope) -> list[Var]:
        """Return what a node may be: computed of what it shares with the nodes that are found."""
        shared = [found[p] for p in walk_nodes(node) if isinstance(found.get(p), Var)]
        return scope.made_of(shared, depth(node))

    def made(self, found: Assignment, scope: BlockScope) -> Match | str | None:
        """Return a match, why it cannot be one, or None if it is made of nothing."""
        opened = (value for node, value in found.items() if node.opens)
        inside = {scope.bindings[v] for v in opened if isinstance(v, Var)}
        atoms = [found[node] for node in self.pattern.results]
        if not inside or not all(atom in scope.bindings for atom in atoms):
            return None
        results = tuple(scope.bindings[atom] for atom in atoms)
        if len(set(results)) < len(results):
            return "two results are one value"
        members = tuple(sorted(inside, key=scope.places.position.__getitem__))
        replaced = frozenset(self.replaced(members, results))
        place = scope.places.find(members, replaced, results)
        if place is None:
            return "a result is used before all that the match reads is there"
        captures = {name: found.get(p) for name, p in self.pattern.captures.items()}
        return Match(self.pattern, members, captures, results, replaced, place)

    def replaced(
        self, members: tuple[Binding, ...], results: tuple[Binding, ...]
    ) -> Iterator[Binding]:
        """Yield the members but for views and splits of what the match reads that others use too:
        these stay. Where the others are replaced as well, as a gradient is, they die.
        """
        inner = {member.var for member in members}
        moved: set[Expr] = set()
        for member in members:
            view = self.facts.buffers.of(member.var) is not member.var
            sources = inner.intersection(operands(member.value))
            if (view or called_op(member.value) is op.split) and sources <= moved:
                moved.add(member.var)
        stays: set[object] = set()
        for member in reversed(members):
            users = self.facts.uses.users(member.var)
            read = any(user not in members or user in stays for user in users)
            if read and member not in results and member.var in moved:
                stays.add(member)
        yield from (member for member in members if member not in stays)

    def problem(self, one: Match, scope: BlockScope) -> str | None:
        """Return why the members cannot be one, or None."""
        position, members = scope.places.position, set(one.members)
        for member in one.members:
            if member in self.taken:
                return f"{scope.shown(member.var)} belongs to another match"
            if not is_pure(member) and not (self.writing and _only_writes(member)):
                return f"{scope.shown(member.var)} is random or writes an argument"
            outside = [u for u in self.facts.uses.users(member.var) if u not in members]
            inner = member in one.replaced and member not in one.results
            if outside and inner and not self.shared:
                return f"{scope.shown(member.var)} is also used {_shown_user(outside[0], scope)}"
        begin = min(position[one.members[0]], ceil(one.place))
        end = max(position[one.root], ceil(one.place))
        buffers = self.facts.buffers
        read = {buffers.of(a) for m in members for a in operands(m.value)}
        written = {b for m in members for b in buffers.written_by(m)}
        for binding in scope.block.bindings[begin:end]:
            if binding in members:
                continue
            if read & buffers.written_by(binding):
                return f"what the match reads is written in between, by {scope.shown(binding.var)}"
            if written and self.meets(written, binding):
                return f"what the match writes is used in between, by {scope.shown(binding.var)}"
        if self.pattern.check is None:
            return None
        reason = self.pattern.check_of({**one.types, "match": one})
        if reason is not None and not isinstance(reason, str):
            raise ArgumentError(
                f"the check of {self.pattern.name} returns {reason!r}",
                expected="why a match is refused, or None",
            )
        return reason

    def meets(self, written: set[Expr], binding: Binding) -> bool:
        """Whether a write cannot move past a binding, which uses it or may end the program."""
        if any(self.may_fail(one.value) for one in (binding, *nested_bindings(binding.value))):
            return True
        buffers = self.facts.buffers
        used = {buffers.of(a) for a in uses(binding.value)} | buffers.written_by(binding)
        return not written.isdisjoint(used)

    def may_fail(self, value: Expr) -> bool:
        module = self.facts.module
        if not isinstance(value, Call) or base_op(value.callee) is not None:
            return value.effect is Effect.FAIL
        return module is None or fused_function(value, module) is None


def _only_writes(binding: Binding) -> bool:
    """Whether all that a binding does beside computing its value is to write arguments."""
    op = called_op(binding.value)
    return op is not None and not op.random


def _shown_user(user: User, scope: BlockScope) -> str:
    return "as a result" if isinstance(user, Block) else f"by {scope.shown(user.var)}"


def captured_atoms(one: Match) -> dict[Expr, str]:
    """Return the names of the variables and constants that a match captures from outside."""
    inside = {m.var for m in one.members}
    names: dict[Expr, str] = {}
    for name, value in one.captures.items():
        if isinstance(value, Var | Constant) and value not in inside:
            names.setdefault(value, name)
    return names
