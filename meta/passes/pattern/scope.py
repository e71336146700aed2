"""What a search knows of a function: who uses what, what may share memory, where the calls of an
operator are, and what a block's variables are bound to.

Calls of one result stand where it was computed. Several results may be used before the last of them
is there, so their call has to come earlier: after everything that the match reads, and before all
that use its results. Positions are positions in the block, and numbers between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from functools import cached_property
from itertools import chain
from math import ceil
from typing import Any

from meta.dialect.core.ir_calls import called_op
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
)
from meta.ir.literals import literal_text
from meta.ir.printer import variable_names
from meta.ir.visit import User, inner_blocks, nested_bindings
from meta.op.core import Op
from meta.passes.alias_analysis import AliasSets, AliasSummaries
from meta.passes.pattern.nodes import Node


class Positions:
    """The positions in one block, as matches that were found move them."""

    def __init__(self, block: Block, uses: DefUse) -> None:
        self.block, self.uses = block, uses
        self.position: Mapping[Binding, int] = {b: i for i, b in enumerate(block.bindings)}
        self._moved: dict[Binding, float] = {}
        self._outer: dict[User, Binding] = {}
        for binding in block.bindings:
            for one in (binding, *nested_bindings(binding.value)):
                self._outer.update(dict.fromkeys((one, *inner_blocks(one.value)), binding))

    def of(self, user: User) -> float:
        """Return where a binding, or the one around it, is evaluated; the end for the result."""
        user = self._outer.get(user, user)
        if isinstance(user, Block):
            return len(self.block.bindings)
        return self._moved.get(user, self.position[user])

    def find(
        self, members: tuple[Binding, ...], inside: Set[Binding], results: tuple[Binding, ...]
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

    def move(self, inside: Set[Binding], place: float) -> None:
        """Note where the results of a match are computed from now on."""
        self._moved.update(dict.fromkeys(inside, place))


class Facts:
    """Facts of one function of a module (None: nothing is known of other functions)."""

    def __init__(self, function: Function, module: Module | None) -> None:
        self.function, self.module = function, module
        self._calls: dict[Block, dict[Op, list[Var]]] = {}

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The body and all blocks within, those of a binding after the blocks before it."""
        nested = (inner_blocks(b.value) for b in bindings(self.function))
        return (self.function.body, *chain.from_iterable(nested))

    @cached_property
    def buffers(self) -> AliasSets:
        """Which values may share memory."""
        summaries = None if self.module is None else AliasSummaries(self.module)
        return AliasSets(self.function, summaries)

    @cached_property
    def uses(self) -> DefUse:
        """Who uses what."""
        return DefUse(self.function)

    @cached_property
    def names(self) -> dict[Var, str]:
        """The names under which variables are printed."""
        return variable_names(self.function)

    def calls(self, block: Block) -> Mapping[Op, list[Var]]:
        """Return the results of calls in a block by the base operator, in program order."""
        found = self._calls.get(block)
        if found is None:
            found = self._calls[block] = {}
            for binding in block.bindings:
                op = called_op(binding.value)
                if op is not None:
                    found.setdefault(op, []).append(binding.var)
        return found


class BlockScope:
    """The values of one block's own bindings, and the names of its function's variables.

    complete: whether a search is to fail where it gets furthest, not at once where a call that a
    node needs is not near. arithmetic: by value, the step that computes it, as formulas read it.
    """

    def __init__(self, block: Block, facts: Facts, complete: bool = False) -> None:
        self.complete = complete
        self.arithmetic: dict[Any, tuple[Op, tuple[Any, ...]] | None] = {}
        self._among: dict[Node, Set[Var] | None] = {}
        self.block, self.facts, self.uses = block, facts, facts.uses
        self.bindings = {b.var: b for b in block.bindings}
        self.places = Positions(block, facts.uses)

    def get(self, atom: object) -> Expr | None:
        """Return what a variable of the block is bound to; None for any other atom."""
        binding = self.bindings.get(atom) if isinstance(atom, Var) else None
        return None if binding is None else binding.value

    def value_of(self, atom: Any) -> Any:
        """Return what a variable of the block is bound to; any other atom itself."""
        value = self.get(atom)
        return atom if value is None else value

    def candidates(self, node: Node) -> list[Binding]:
        """Return the bindings whose values may be what a node describes, in program order."""
        near = self.among(node)
        if near is None:
            return [b for b in self.block.bindings if node.may_be(b.value)]
        found = [b for b in map(self.bindings.__getitem__, near) if node.may_be(b.value)]
        return sorted(found, key=self.places.position.__getitem__)

    def may_be(self, node: Node, atom: Expr) -> bool:
        """Tell quickly whether an atom can be what a node describes."""
        near = self.among(node)
        return (near is None or atom in near) and node.may_be(self.value_of(atom))

    def among(self, node: Node) -> Set[Var] | None:
        """Return the variables that alone can be what a node describes; None if all can."""
        if node not in self._among:
            self._among[node] = None if self.complete else node.among(self)
        return self._among[node]

    def users(self, values: Iterable[Var]) -> set[Var]:
        """Return the variables of the block that are bound to what reads some values."""
        readers = (u for v in values for u in self.uses.users(v) if u in self.places.position)
        return {u.var for u in readers if isinstance(u, Binding)}

    def reached(self, values: Set[Var], accepts: Callable[[Expr], bool]) -> set[Var]:
        """Return what the block computes of some values by steps that are accepted."""
        found: set[Var] = set()
        pending: Set[Var] = values
        while pending:
            near = self.users(pending) - found
            pending = {v for v in near if accepts(self.bindings[v].value)}
            found |= pending
        return found

    def shown(self, value: Any) -> str:
        """Return an atom or literal as a reason for refusal names it."""
        if isinstance(value, Var):
            return self.facts.names.get(value, "a variable from outside")
        if isinstance(value, Constant):
            return f"a constant {value.type}"
        return str(value) if isinstance(value, Expr) else literal_text(value)

    def made_of(self, values: list[Var], steps: int) -> list[Var]:
        """Return what the block computes of values in so many steps at most, in program order."""
        found: set[Var] = set()
        near: Iterable[Var] = values
        for _ in range(steps):
            near = self.users(near) - found
            found.update(near)
        return sorted(found, key=lambda var: self.places.position[self.bindings[var]])
