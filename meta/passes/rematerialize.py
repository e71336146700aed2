"""Recomputing values instead of keeping them: memory for time.

`rematerialize` chooses. What can be recomputed, what that costs, and the program with and without
it is in `TimedProgram`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace
from functools import cached_property

from meta.base.errors import ArgumentError
from meta.cost.flops import NOTHING, Work, work_of
from meta.dialect.core.ir_calls import base_op, is_pure, view_source
from meta.ir import (
    Binding,
    Call,
    Expr,
    Module,
    Tuple,
    TupleGetItem,
    Var,
    operands,
    type_bytes,
    with_operands,
)
from meta.passes.effects import ANYTHING, Effects
from meta.passes.liveness import Liveness
from meta.passes.manager import Pass
from meta.passes.plan_memory import planned_peak
from meta.passes.rewrite import with_main, with_value
from meta.passes.split_updates import join_small_updates, split_updates

PATIENCE = 20
"""Steps without a lower peak after which the search ends."""


def rematerialize(
    module: Module, *, budget: int | None = None, lower: Pass = lambda module: module
) -> Module:
    """Recompute values of main where they are used again, until it needs ``budget`` bytes at most.

    At the worst moment, of all values that are in use before and after it, but not then, the one
    is recomputed for which bytes x time of idleness / time of recomputation is the largest: the
    heuristic of dynamic tensor rematerialization (Kirisame et al., arXiv:2006.09616) with the times
    of `work`, applied to the plan instead of at run time. What its recomputation reads, and is not
    in use any more, is recomputed too, or kept if it is small. Random calls, calls with effects and
    what is written to are kept, and so is what a recomputation would find changed. Recomputations
    that were chosen early, and can be spared in the end, are taken back. Before anything is
    recomputed, an update of all parameters at once is taken apart (`split_updates`); those of small
    parameters are joined in the end, if there is room (`join_small_updates`).

    Parameters
    ----------
    budget: bytes for everything but inputs and constants, as `planned_peak` counts them; None
        leaves the program as it is.
    lower: the passes that follow, after which the bytes are counted.

    Raises ArgumentError, with the least budget that this finds a program for, if the program cannot
    be made to fit.

    >>> from meta.ir import parse
    >>> print(meta.passes.rematerialize(parse('''
    ... func @main(%x: float32[64]) -> float32[64] {
    ...   %a: float32[64] = exp(%x)
    ...   %b: float32[64] = cumsum(%a, axis=0)
    ...   %c: float32[128] = concat((%b, %b), axis=0)
    ...   %d: float32[] = sum(%c)
    ...   %e: float32[64] = add(%a, %d)
    ...   return %e
    ... }'''), budget=3 * 256))
    func @main(%x: float32[64]) -> float32[64] {
      %a: float32[64] = exp(%x)
      %b: float32[64] = cumsum(%a, axis=0)
      %c: float32[128] = concat((%b, %b))
      %d: float32[] = sum(%c)
      %a_1: float32[64] = exp(%x)
      %e: float32[64] = add(%a_1, %d)
      return %e
    }
    """
    if budget is None:
        return module
    program = TimedProgram(module, lower, {})
    if program.peak <= budget:
        return module
    apart = TimedProgram(split_updates(module), lower, {})
    program = apart if apart.peak < program.peak else program
    least, waited = program.peak, 0
    # What is not recomputed: it is a recomputation, or one of it was undone; it did not help.
    settled, useless = set[Var](), set[Var]()
    while program.peak > budget:
        choice = program.best_choice(settled | useless) if waited <= PATIENCE else None
        if choice is None:
            # What was recomputed early may be of no use any more, and stand in the way.
            program, undone = _drop_recomputations(program, lower, program.peak)
            if undone <= settled:
                raise ArgumentError(
                    "the program does not fit the memory budget",
                    expected=f"at least {least} bytes, with what can be recomputed",
                    found=f"{budget} bytes",
                )
            settled, useless, waited = settled | undone, set(), 0
            continue
        changed = TimedProgram(choice.applied(), lower, program.origins | choice.origins)
        if changed.peak > program.peak:
            useless.add(choice.value)
            continue
        program = changed
        settled.update(choice.origins)
        waited = 0 if program.peak < least else waited + 1
        least = min(least, program.peak)
    program = _drop_recomputations(program, lower, budget)[0]
    joined = TimedProgram(join_small_updates(program.module), lower, program.origins)
    return joined.module if joined.peak <= budget else program.module


def _drop_recomputations(
    program: TimedProgram, lower: Pass, limit: int
) -> tuple[TimedProgram, set[Var]]:
    """Return the program without the recomputations that can be spared within ``limit`` bytes, and
    the values that are not recomputed any more.

    A value that need not be recomputed twice is recomputed once. Values that were computed from
    others come first, since with them goes what only they need.
    """
    undone = set[Var]()
    for binding in reversed(program.bindings):
        clones = program.recomputed(binding.var)
        if not clones or is_alias(binding):
            continue
        ways = [(clones[0], clones[1:])] if len(clones) > 1 else []
        if program.has_room(binding.var, clones[0], limit):
            ways.insert(0, (binding.var, clones))
        for kept, spared in ways:
            changed = TimedProgram(program.without(spared, kept), lower, program.origins)
            if changed.peak <= limit:
                program = changed
                undone |= {binding.var} & {kept}
                break
    return program, undone


MAX_INPUT_SHARE = 8
"""What a recomputation reads is kept for it, instead of being recomputed too, if it has at most
this part (1 / KEPT) of the bytes that are saved."""


def _rename_operands(binding: Binding, names: dict[Var, Var]) -> Binding:
    """Return a binding that reads other variables."""
    return with_value(binding, with_operands(binding.value, names))


class TimedProgram:
    """A program, and when what is used once it is lowered.

    Moments are those of the lowered program; a binding that was fused there has that of its kernel.
    ``origins`` says of each recomputation in it which variable's value it computes again.
    """

    def __init__(self, module: Module, lower: Pass, origins: dict[Var, Var]) -> None:
        self.module, self.origins = module, origins
        self.bindings = module.main.body.bindings
        lowered = lower(module)
        self.low = Liveness(lowered.main, lowered)
        self._lowered = {b.var for b in self.low.bindings}
        self.peak = planned_peak(lowered.main, lowered)
        self.live = Liveness(module.main, module)
        self.effects = Effects(module.main, self.live)
        self.index = {b.var: i for i, b in enumerate(self.bindings)}

    def recomputed(self, origin: Var) -> list[Var]:
        """Return the recomputations of a value that nobody writes to, the first one first."""
        found = [b.var for b in self.bindings if self.origins.get(b.var) is origin]
        return found if self.unchanged((origin, *found), -1, len(self.bindings)) else []

    def has_room(self, kept: Var, until: Var, limit: int) -> bool:
        """Whether a value may be kept from its last use to another binding, as things are now."""
        buffers = self.live.of(kept)
        uses = [self.moments[i] for n in buffers for i in self.users.get(n, ())]
        last = max(uses, default=self.moments[self.index[kept]])
        between = self.in_use[last + 1 : self.moments[self.index[until]]]
        size = sum(self.live.buffers[n].size for n in buffers)
        return max(between, default=0) + size <= limit

    def without(self, spared: Iterable[Var], kept: Var) -> Module:
        """Return the program with one value instead of several, and without what only they need."""
        names = dict.fromkeys(spared, kept)
        used: set[Expr] = {*names, *operands(self.module.main.body.result)}
        items: list[Binding] = []
        for binding in reversed(self.bindings):
            unused = binding.var in self.origins and binding.var not in used
            if binding.var not in names and not unused:
                items.append(_rename_operands(binding, names))
                used.update(operands(items[-1].value))
        return with_main(self.module, reversed(items))

    @cached_property
    def in_use(self) -> list[int]:
        """The bytes in use at each moment."""
        return self.low.live_bytes()

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
            if not is_alias(binding):
                for number in {n for a in operands(binding.value) for n in self.live.of(a)}:
                    found.setdefault(number, []).append(i)
        return found

    @cached_property
    def writes(self) -> list[tuple[int, set[Hashable]]]:
        """The bindings that write, and to which places."""
        found = [(i, self.effects.writes(b)) for i, b in enumerate(self.bindings)]
        return [(i, places) for i, places in found if places]

    def best_choice(self, refused: set[Var]) -> Recomputation | None:
        """Return what to recompute so that less is in use at the worst moment, if there is any."""
        worst = self.in_use.index(max(self.in_use))
        choices = []
        for value, buffers in self.live.made().items():
            # What is computed in the blocks of an If stays there.
            leaves = any(self.live.buffers[n].leaves for n in buffers)
            if value in self.index and value not in refused and not leaves:
                choice = self._choice(value, buffers, worst)
                if choice is not None:
                    choices.append(choice)
        return max(choices, key=lambda choice: choice.gain, default=None)

    def _idle(self, number: int, made: int, worst: int) -> tuple[int, int] | None:
        """Return the uses of a buffer around the worst moment; None if it is not idle then."""
        uses = [made, *(self.moments[i] for i in self.users.get(number, ()))]
        before, after = [m for m in uses if m < worst], [m for m in uses if m > worst]
        if not before or not after or worst in uses:
            return None
        return max(before), min(after)

    def _choice(self, value: Var, buffers: list[int], worst: int) -> Recomputation | None:
        made = self.moments[self.index[value]]
        idle = {n: uses for n in buffers if (uses := self._idle(n, made, worst)) is not None}
        if not idle:
            return None
        readers = {i for n in idle for i in self.users[n]}
        users = frozenset(i for i in readers if self.moments[i] > worst)
        if not all(isinstance(self.bindings[i].value, Call) for i in users):
            return None
        saved = sum(self.live.buffers[n].size for n in idle)
        choice = Recomputation(self, value, users, saved // MAX_INPUT_SHARE)
        read = (a for i in sorted(users) for a in operands(self.bindings[i].value))
        for atom in dict.fromkeys(read):
            again = isinstance(atom, Var) and not self.live.of(atom).isdisjoint(idle)
            if again and not choice.clone(atom):
                return None
        relief = sum(
            self.live.buffers[n].size * (after - before) for n, (before, after) in idle.items()
        )
        choice.gain = relief / (choice.cost.time + 1)
        return choice

    def in_use_at(self, var: Var, at: int) -> bool:
        """Whether a computed value is in use, anyway, when binding ``at`` is evaluated."""
        numbers = self.live.of(var)
        last = [max((self.moments[i] for i in self.users.get(n, ())), default=-1) for n in numbers]
        return self.kept(var) and all(moment >= self.moments[at] for moment in last)

    def kept(self, var: Var) -> bool:
        """Whether a value is in memory at all once the program is lowered."""
        return var in self._lowered

    def unchanged(self, atoms: Iterable[Expr], since: int, until: int) -> bool:
        """Whether nothing is written to atoms between two bindings."""
        read = {ANYTHING, *(place for atom in atoms for place in self.effects.of(atom))}
        return not any(since < i < until and read & places for i, places in self.writes)


class Recomputation:
    """Recomputing ``value`` for those ``users``, before the first of them: binding ``at``.

    made: copies of what it is computed from, as far as that is not in use by then, nor ``small``.
    renamed: what they and the users read instead. origins: by copy, what it is a recomputation of.
    """

    def __init__(
        self, program: TimedProgram, value: Var, users: frozenset[int], small: int
    ) -> None:
        self.program, self.value, self.users, self.small = program, value, users, small
        self.at = min(users)
        self.made: list[Binding] = []
        self.renamed: dict[Var, Var] = {}
        self.origins: dict[Var, Var] = {}
        self.cost: Work = NOTHING
        self.gain = 0.0

    def applied(self) -> Module:
        """Return the program with the value recomputed."""
        items: list[Binding] = []
        for i, binding in enumerate(self.program.bindings):
            if i == self.at:
                items += self.made
            items.append(_rename_operands(binding, self.renamed) if i in self.users else binding)
        return with_main(self.program.module, items)

    def clone(self, var: Expr) -> bool:
        """Copy the binding of ``var``, inputs first; False if it cannot be computed again."""
        # Depth first with a stack of its own: a chain of bindings may be long.
        stack = [var]
        while stack:
            current = stack[-1]
            if current in self.renamed:
                stack.pop()
                continue
            index = self.program.index.get(current) if isinstance(current, Var) else None
            if index is None:
                return False
            binding = self.program.bindings[index]
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
        index = self.program.index.get(atom)
        if index is None or atom in self.renamed:
            return False
        if is_alias(self.program.bindings[index]):
            sources = [
                a for a in operands(self.program.bindings[index].value) if isinstance(a, Var)
            ]
            return any(self._missing(s) or s in self.renamed for s in sources)
        if atom is self.value:
            return True
        small = self.program.kept(atom) and type_bytes(atom.type) <= self.small
        return not small and not self.program.in_use_at(atom, self.at)

    def _may_repeat(self, binding: Binding, index: int) -> bool:
        if is_alias(binding):
            return True
        if not isinstance(binding.value, Call) or base_op(binding.value.callee) is None:
            return False
        atoms = [*operands(binding.value), binding.var]
        return is_pure(binding) and self.program.unchanged(atoms, index, self.at)

    def _copy(self, binding: Binding) -> None:
        new = Var(binding.var.name, binding.var.type)
        self.made.append(replace(_rename_operands(binding, self.renamed), var=new))
        self.renamed[binding.var] = new
        self.origins[new] = self.program.origins.get(binding.var, binding.var)
        if isinstance(binding.value, Call):
            self.cost += work_of(binding.value)


def is_alias(binding: Binding) -> bool:
    """Whether a binding computes nothing: a view, a field, a tuple, another name."""
    value = binding.value
    if isinstance(value, Call):
        return view_source(value) is not None
    return isinstance(value, Tuple | TupleGetItem | Var)
