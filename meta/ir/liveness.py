"""Liveness: which values are still needed at each point of a function.

A variable is live where its value, or memory that it may share, is used later. What shares memory
by the form of a program is known here: tuples, data values and their fields, references and what
they hold, what an `If` yields, a closure and what it closes over, a second name. That a call
returns a view, or stores something, is the caller's to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from meta.ir.expr import (
    Binding,
    Block,
    Construct,
    Expr,
    Function,
    GetField,
    If,
    MakeRef,
    ReadRef,
    Tuple,
    TupleGetItem,
    Var,
    WriteRef,
)
from meta.ir.visit import bindings, free_vars, inner_blocks, operands

Vars = frozenset[Var]


class Liveness:
    """The live variables of a function, computed once, from the end to the beginning.

    Parameters
    ----------
    views: by variable those whose memory it may share, for views that calls return.

    A closure's body may run at any time while the closure lives: what it closes over is live in all
    of it.
    """

    def __init__(
        self, function: Function, views: Mapping[Var, Iterable[Var]] | None = None
    ) -> None:
        self._shares, self._conditional = _shared(function, views or {})
        self._reach: dict[tuple[Var, bool], Vars] = {}
        self._before: dict[Block, Vars] = {}
        self._dying: dict[Binding | Block, tuple[Var, ...]] = {}
        # What a conditional leaves behind in its blocks: the memory of what they yield.
        self._left: dict[Binding, Vars] = {}
        self._block(function.body, frozenset())

    def kept_by(self, var: Var) -> Vars:
        """Return the variables that are live as long as this one is used, itself among them."""
        return self._reached(var, through_conditionals=True)

    def before(self, block: Block) -> Vars:
        """Return the variables that are live where a block begins."""
        return self._before[block]

    def dying(self, at: Binding | Block) -> tuple[Var, ...]:
        """Return the variables that are live before a binding and not after it.

        A binding whose own variable is never used returns it too. Of a block: the variables that
        its result uses last.
        """
        return self._dying[at]

    def walk(self, block: Block) -> Iterator[tuple[Binding, Vars]]:
        """Yield the bindings of a block in order, each with what is live right after it."""
        live = set(self._before[block])
        for binding in block.bindings:
            live.add(binding.var)
            live.update(self._left.get(binding, ()))
            live.difference_update(self._dying[binding])
            yield binding, frozenset(live)

    def _reached(self, var: Var, through_conditionals: bool) -> Vars:
        key = (var, through_conditionals)
        if key not in self._reach:
            seen, stack = {var}, [var]
            while stack:
                one = stack.pop()
                if one in self._conditional and not through_conditionals:
                    continue
                for other in self._shares.get(one, ()):
                    if other not in seen:
                        seen.add(other)
                        stack.append(other)
            self._reach[key] = frozenset(seen)
        return self._reach[key]

    def _block(self, block: Block, after: Vars) -> Vars:
        """Note what is live in a block, given what is live behind it; return what is before it.

        Given and returned is what is live but for memory that the variable of an `If` keeps: which
        memory that is depends on the side that is taken, so each side adds its own (`_if`).
        """
        near, live = set(after), self._everything(after)
        self._dying[block] = self._use(near, live, operands(block.result))
        for binding in reversed(block.bindings):
            var, value = binding.var, binding.value
            dead = () if var in live else (var,)
            if isinstance(value, If):
                near, before = self._if(value, var, near)
                self._left[binding] = frozenset(live - before - {var})
                self._dying[binding] = (*dead, *(v for v in before if v not in live))
                live = before
                continue
            near.discard(var)
            live.discard(var)
            used: Iterable[Expr] = operands(value)
            if isinstance(value, Function):
                used = free_vars(value)
                captured = (self._reached(v, through_conditionals=False) for v in used)
                self._block(value.body, frozenset().union(*captured))
            self._dying[binding] = (*dead, *self._use(near, live, used))
        self._before[block] = frozenset(live)
        return frozenset(near)

    def _if(self, value: If, var: Var, near: set[Var]) -> tuple[set[Var], set[Var]]:
        """Note what is live in both sides of a conditional; return what is before it, twice."""
        before: set[Var] = set()
        for side in (value.then_block, value.else_block):
            after = near - {var}
            if var in near:
                self._use(after, set(), operands(side.result))
            before |= self._block(side, frozenset(after))
        live = self._everything(before)
        self._use(before, live, operands(value))
        return before, live

    def _everything(self, near: Iterable[Var]) -> set[Var]:
        return set().union(*map(self.kept_by, near))

    def _use(self, near: set[Var], live: set[Var], atoms: Iterable[Expr]) -> tuple[Var, ...]:
        """Make atoms live, with all that they keep; return what was not live before."""
        new: dict[Var, None] = {}
        for atom in atoms:
            if isinstance(atom, Var):
                near |= self._reached(atom, through_conditionals=False)
                new.update((v, None) for v in self.kept_by(atom) if v not in live)
        live.update(new)
        return tuple(new)


def _shared(
    function: Function, views: Mapping[Var, Iterable[Var]]
) -> tuple[dict[Var, list[Var]], set[Var]]:
    """Return, by variable, those whose memory is its own or a part of it; and which are `If`s."""
    values: dict[Var, Expr] = {}
    found: dict[Var, list[Var]] = {}
    writes: list[WriteRef] = []
    for binding in bindings(function):
        value = values[binding.var] = binding.value
        match value:
            case Var() | Tuple() | Construct() | GetField() | MakeRef() | ReadRef():
                atoms = list(operands(value))
            case WriteRef():
                atoms = []
                writes.append(value)
            case TupleGetItem():
                owner = values.get(value.value) if isinstance(value.value, Var) else value.value
                part = owner.fields[value.index] if isinstance(owner, Tuple) else value.value
                atoms = list(operands(part))
            case If():
                atoms = [a for b in inner_blocks(value) for a in operands(b.result)]
            case Function():
                atoms = list(free_vars(value))
            case _:
                atoms = list(views.get(binding.var, ()))
        found[binding.var] = [a for a in atoms if isinstance(a, Var)]
    _add_stored(found, writes)
    return found, {var for var, value in values.items() if isinstance(value, If)}


def _add_stored(found: dict[Var, list[Var]], writes: list[WriteRef]) -> None:
    """Let everything that may be, or lead to, the reference of a write keep what is written."""
    changed = bool(writes)
    while changed:
        changed = False
        for write in writes:
            stored = [a for a in operands(write.value) if isinstance(a, Var)]
            aliases = [a for a in operands(write.ref) if isinstance(a, Var)]
            seen = set(aliases)
            while aliases:
                alias = aliases.pop()
                kept = found.setdefault(alias, [])
                new = [v for v in kept if v not in seen]
                seen.update(new)
                aliases += new
                missing = [v for v in stored if v not in kept and v is not alias]
                kept += missing
                changed |= bool(missing)
