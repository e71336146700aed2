"""Recomputing values instead of keeping them: memory for time."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from meta.base.errors import ArgumentError
from meta.ir import (
    Binding,
    Block,
    Call,
    Expr,
    Module,
    Tuple,
    TupleGetItem,
    Var,
    map_atoms,
    operands,
)
from meta.passes.call_of import base_op, is_pure
from meta.passes.cost import NOTHING, Cost, cost_of
from meta.passes.effects import ANYTHING, Effects
from meta.passes.lifetimes import Lifetimes, view_source
from meta.passes.manager import Pass
from meta.passes.plan_memory import planned_peak

PATIENCE = 20
"""Steps without a lower peak after which the search ends."""


def rematerialize(
    module: Module, *, budget: int | None = None, lower: Pass = lambda module: module
) -> Module:
    """Recompute values of main where they are used again, until it needs ``budget`` bytes at most.

    At the worst moment, of all values that are in use before and after it, but not then, the one
    is recomputed for which bytes x time of idleness / time of recomputation is the largest: the
    heuristic of dynamic tensor rematerialization (Kirisame et al., arXiv:2006.09616) with the times
    of `cost`, applied to the plan instead of at run time. What its recomputation reads, and is not
    in use any more, is recomputed too. Random calls, calls with effects and what is written to are
    kept, and so is what a recomputation would find changed.

    Parameters
    ----------
    budget: bytes for everything but inputs and constants, as `planned_peak` counts them; None
        leaves the program as it is.
    lower: the passes that follow, after which the bytes are counted.

    Raises ArgumentError, with the least budget that this finds a program for, if the program cannot
    be made to fit.

    >>> from meta.ir import parse
    >>> print(rematerialize(parse('''
    ... func @main(%x: float32[64]) -> float32[64] {
    ...   %a: float32[64] = exp(%x)
    ...   %b: float32[64] = cumsum(%a, axis=0)
    ...   %c: float32[128] = concatenate((%b, %b), axis=0)
    ...   %d: float32[] = sum(%c)
    ...   %e: float32[64] = add(%a, %d)
    ...   return %e
    ... }'''), budget=3 * 256))
    func @main(%x: float32[64]) -> float32[64] {
      %a: float32[64] = exp(%x)
      %b: float32[64] = cumsum(%a, axis=0)
      %c: float32[128] = concatenate((%b, %b))
      %d: float32[] = sum(%c)
      %a_1: float32[64] = exp(%x)
      %e: float32[64] = add(%a_1, %d)
      return %e
    }
    """
    if budget is None:
        return module
    state = _State(module, lower)
    least, waited = state.peak, 0
    # What is not recomputed: it did not help, or it is a recomputation.
    refused: set[Var] = set()
    while state.peak > budget:
        choice = state.best_choice(refused)
        if choice is None or waited > PATIENCE:
            raise ArgumentError(
                "the program does not fit the memory budget",
                expected=f"at least {least} bytes, with what can be recomputed",
                found=f"{budget} bytes",
            )
        changed = _State(choice.applied(state), lower)
        if changed.peak > state.peak:
            refused.add(choice.value)
            continue
        state = changed
        refused.update(binding.var for binding in choice.clones)
        waited = 0 if state.peak < least else waited + 1
        least = min(least, state.peak)
    return state.module


@dataclass(frozen=True)
class _Choice:
    """Recomputing ``value`` before binding ``at``, by ``clones``, for those ``users``."""

    value: Var
    at: int
    clones: tuple[Binding, ...]
    users: frozenset[int]
    renamed: dict[Var, Var]
    gain: float

    def applied(self, state: _State) -> Module:
        """Return the program with the value recomputed."""
        items: list[Binding] = []
        for i, binding in enumerate(state.bindings):
            if i == self.at:
                items += self.clones
            if i in self.users:
                value = map_atoms(binding.value, self._new)
                binding = Binding(binding.var, value, binding.span)
            items.append(binding)
        main = state.module.main
        body = Block(tuple(items), main.body.result)
        return Module({**state.module.functions, "main": replace(main, body=body)})

    def _new(self, atom: Expr) -> Expr:
        return self.renamed.get(atom, atom) if isinstance(atom, Var) else atom


class _State:
    """A program, and when what is used once it is lowered.

    Moments are those of the lowered program; a binding that was fused there has that of its kernel.
    """

    def __init__(self, module: Module, lower: Pass) -> None:
        self.module = module
        self.bindings = module.main.body.bindings
        lowered = lower(module)
        self.low = Lifetimes(lowered.main, lowered)
        self.peak = planned_peak(lowered.main, lowered)
        self.live = Lifetimes(module.main, module)
        self.effects = Effects(module.main, self.live)
        self.index = {b.var: i for i, b in enumerate(self.bindings)}

    @cached_property
    def moments(self) -> list[int]:
        """When each binding is evaluated."""
        known = {b.var: i for i, b in enumerate(self.low.bindings)}
        end = len(self.low.bindings)
        moments = [end] * len(self.bindings)
        first_use = dict[Var, int]()
        for i in reversed(range(len(self.bindings))):
            binding = self.bindings[i]
            moments[i] = known.get(binding.var, first_use.get(binding.var, end))
            for atom in operands(binding.value):
                if isinstance(atom, Var):
                    first_use[atom] = min(moments[i], first_use.get(atom, end))
        return moments

    @cached_property
    def users(self) -> dict[int, list[int]]:
        """The bindings that read each buffer; views, tuples and fields do not."""
        found: dict[int, list[int]] = {}
        for i, binding in enumerate(self.bindings):
            if not _is_alias(binding):
                for number in {n for a in operands(binding.value) for n in self.live.of(a)}:
                    found.setdefault(number, []).append(i)
        return found

    @cached_property
    def writes(self) -> list[tuple[int, set[Hashable]]]:
        """The bindings that write, and to which places."""
        found = [(i, self.effects.writes(b)) for i, b in enumerate(self.bindings)]
        return [(i, places) for i, places in found if places]

    def best_choice(self, refused: set[Var]) -> _Choice | None:
        """Return what to recompute so that less is in use at the worst moment, if there is any."""
        bytes_at = self.low.live_bytes()
        worst = bytes_at.index(max(bytes_at))
        choices = []
        for value, buffers in self.results.items():
            if value not in refused and not any(self.live.buffers[n].leaves for n in buffers):
                choice = self._choice(value, buffers, worst)
                if choice is not None:
                    choices.append(choice)
        return max(choices, key=lambda choice: choice.gain, default=None)

    @cached_property
    def results(self) -> dict[Var, list[int]]:
        """The buffers that each binding makes, by its variable."""
        found: dict[Var, list[int]] = {}
        for number, buffer in enumerate(self.live.buffers):
            found.setdefault(self.bindings[buffer.binding].var, []).append(number)
        return found

    def _idle(self, number: int, worst: int) -> tuple[int, int] | None:
        """Return the uses of a buffer around the worst moment; None if it is not idle then."""
        made = self.moments[self.live.buffers[number].binding]
        uses = [made, *(self.moments[i] for i in self.users.get(number, ()))]
        before, after = [m for m in uses if m < worst], [m for m in uses if m > worst]
        if not before or not after or worst in uses:
            return None
        return max(before), min(after)

    def _choice(self, value: Var, buffers: list[int], worst: int) -> _Choice | None:
        idle = {n: uses for n in buffers if (uses := self._idle(n, worst)) is not None}
        if not idle:
            return None
        readers = {i for n in idle for i in self.users[n]}
        users = frozenset(i for i in readers if self.moments[i] > worst)
        if not all(isinstance(self.bindings[i].value, Call) for i in users):
            return None
        at = min(users)
        cloner = _Cloner(self, at, value)
        wanted = {a for i in users for a in operands(self.bindings[i].value)}
        for atom in wanted:
            again = isinstance(atom, Var) and not self.live.of(atom).isdisjoint(idle)
            if again and not cloner.clone(atom):
                return None
        saved = sum(
            self.live.buffers[n].size * (after - before) for n, (before, after) in idle.items()
        )
        gain = saved / (cloner.cost.time + 1)
        return _Choice(value, at, tuple(cloner.made), users, cloner.renamed, gain)

    def in_use_at(self, var: Var, at: int) -> bool:
        """Whether a computed value is in use, anyway, when binding ``at`` is evaluated."""
        numbers = self.live.of(var)
        last = [max((self.moments[i] for i in self.users.get(n, ())), default=-1) for n in numbers]
        return self.kept(var) and all(moment >= self.moments[at] for moment in last)

    def kept(self, var: Var) -> bool:
        """Whether a value is in memory at all once the program is lowered."""
        return var in self._lowered

    @cached_property
    def _lowered(self) -> set[Var]:
        return {b.var for b in self.low.bindings}

    def unchanged(self, atoms: Iterable[Expr], since: int, until: int) -> bool:
        """Whether nothing is written to atoms between two bindings."""
        read = {ANYTHING, *(place for atom in atoms for place in self.effects.of(atom))}
        return not any(since < i < until and read & places for i, places in self.writes)


class _Cloner:
    """Copies what a value is computed from, as far as it is not in use before binding ``at``."""

    def __init__(self, state: _State, at: int, value: Var) -> None:
        self.state, self.at, self.value = state, at, value
        self.made: list[Binding] = []
        self.renamed: dict[Var, Var] = {}
        self.cost: Cost = NOTHING

    def clone(self, var: Var) -> bool:
        """Copy the binding of ``var``, inputs first; False if it cannot be computed again."""
        # Depth first with a stack of its own: a chain of bindings may be long.
        stack = [var]
        while stack:
            current = stack[-1]
            if current in self.renamed:
                stack.pop()
                continue
            index = self.state.index.get(current)
            if index is None:
                return False
            binding = self.state.bindings[index]
            needed = [a for a in operands(binding.value) if isinstance(a, Var) and self._missing(a)]
            if needed:
                stack += needed
                continue
            if not self._may_repeat(binding, index):
                return False
            stack.pop()
            self._copy(binding)
        return True

    def _missing(self, atom: Var) -> bool:
        """Whether an operand has to be computed again first."""
        index = self.state.index.get(atom)
        if index is None or atom in self.renamed:
            return False
        if _is_alias(self.state.bindings[index]):
            sources = [a for a in operands(self.state.bindings[index].value) if isinstance(a, Var)]
            return any(self._missing(s) or s in self.renamed for s in sources)
        return atom is self.value or not self.state.in_use_at(atom, self.at)

    def _may_repeat(self, binding: Binding, index: int) -> bool:
        if _is_alias(binding):
            return True
        if not isinstance(binding.value, Call) or base_op(binding.value.callee) is None:
            return False
        atoms = [*operands(binding.value), binding.var]
        return is_pure(binding) and self.state.unchanged(atoms, index, self.at)

    def _copy(self, binding: Binding) -> None:
        new = Var(binding.var.name, binding.var.type)
        value = map_atoms(
            binding.value, lambda a: self.renamed.get(a, a) if isinstance(a, Var) else a
        )
        self.renamed[binding.var] = new
        self.made.append(Binding(new, value, binding.span))
        if isinstance(value, Call):
            self.cost += cost_of(value)


def _is_alias(binding: Binding) -> bool:
    """Whether a binding computes nothing: a view, a field, a tuple, another name."""
    value = binding.value
    if isinstance(value, Call):
        return view_source(value) is not None
    return isinstance(value, Tuple | TupleGetItem | Var)
