"""Updates of parameters in chunks, where they wait for collectives or collectives wait for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from meta import op
from meta.dialect.core.ir_calls import (
    atom_type,
    base_op,
    called_op,
    named_args,
    new_call,
    written_atoms,
)
from meta.ir import (
    Binding,
    Call,
    Expr,
    Module,
    TensorType,
    Tuple,
    TupleType,
    Var,
    to_graph,
    type_bytes,
    type_of,
)
from meta.ir.visit import uses
from meta.op.core import Op
from meta.op.core.update import OPTIMIZERS, RATES
from meta.passes.distributed.overlap import Overlap, is_work, overlaps_of
from meta.passes.effects import Effects
from meta.passes.liveness import Liveness, Memory
from meta.passes.rewrite import with_main

MAX_INDEPENDENT_KERNELS = 8
"""Kernels that do not need a collective and follow on its start, where hardly any follow."""
MIN_CHUNK_BYTES = 8 << 20
"""A part of what is gathered in place behind an update has so many bytes at least."""


def chunk_updates(module: Module, parts: int) -> Module:
    """Return the module with updates of main in parts, and what is made of collectives before the
    part that needs it.

    An update that waits for collectives is in two, of which the second needs those that start at
    the end of the program. Behind an update, what is gathered in place
    (`meta.op.multi_tensor_all_gather_in_place`) is in about so many parts of equal bytes, and so is
    the update: the part of the one can go on beside the next of the other.
    """
    flights = list(overlaps_of(module))
    bindings = module.main.body.bindings
    updates = [i for i, b in enumerate(bindings) if called_op(b.value) in OPTIMIZERS]
    gathers = [i for i, b in enumerate(bindings) if called_op(b.value) is _GATHER]
    if not flights or not (updates or gathers):
        return module
    known = _Needs(module, flights)
    found: dict[int, list[Binding]] = {}
    moved: set[int] = set()
    for i in updates:
        for turns in (known.late(i), known.last(i), None):
            if turns == {}:
                continue
            parted = _Update(i, known, parts).parted(turns, moved)
            if parted is not None:
                found[i] = parted
                break
    made = [b for i, one in enumerate(bindings) if i not in moved for b in found.get(i, [one])]
    return with_main(module, _chunk_gathers(made, known.live, parts))


def sink_shards(module: Module) -> Module:
    """Return the module with `meta.op.own_shard` in main right before what reads it, so that one
    CUDA graph has both: between two graphs a view that is written is memory of its own.
    """
    bindings = module.main.body.bindings
    shards = {b.var: b for b in bindings if called_op(b.value) is op.own_shard}
    if not shards:
        return module
    made: list[Binding] = []

    def place(binding: Binding) -> None:
        for atom in uses(binding.value):
            if isinstance(atom, Var) and atom in shards:
                place(shards.pop(atom))
        made.append(binding)

    for binding in [b for b in bindings if b.var not in shards]:
        place(binding)
    return with_main(module, [*made, *shards.values()])


_GATHER = op.multi_tensor_all_gather_in_place


class _Needs:
    """What the bindings of main need of its collectives.

    of: by the number of a binding, the numbers of the collectives that it follows on. gathered: by
    memory, the number of the binding that gathers it in place, and how many bytes.
    """

    def __init__(self, module: Module, flights: list[Overlap]) -> None:
        self.bindings, self.flights = module.main.body.bindings, flights
        self.live = Liveness(module.main, module)
        self.effects = Effects(module.main, self.live)
        self.nodes = to_graph(module.main.body, self.effects.places)
        self.made = {b.var: i for i, b in enumerate(self.bindings)}
        at = {flight.at for flight in flights}
        self.of: list[frozenset[int]] = []
        for node in self.nodes:
            before = [n.position for n in (*node.inputs, *node.after)]
            needed = frozenset[int]().union(*(self.of[i] for i in before))
            self.of.append(needed | (at & {node.position}))
        self.gathered: dict[Memory, tuple[int, int]] = {}
        for i, binding in enumerate(self.bindings):
            for atom in _gathered_in_place(binding):
                for memory in self.live.memory(atom):
                    self.gathered[memory] = i, type_bytes(type_of(atom))

    @property
    def alone(self) -> list[bool]:
        """Whether a binding runs a kernel that needs no collective."""
        return [is_work(b) and not self.of[i] for i, b in enumerate(self.bindings)]

    def late(self, end: int) -> dict[int, int]:
        """Return 1 for the collectives with little beside them until a binding: few kernels follow
        on their start that need none.
        """
        alone = self.alone[:end]
        before = (f for f in self.flights if f.at < end)
        return {f.at: 1 for f in before if sum(alone[f.begin + 1 :]) <= MAX_INDEPENDENT_KERNELS}

    def last(self, end: int) -> dict[int, int]:
        """Return 1 for the collective that starts last."""
        before = [f for f in self.flights if f.at < end]
        return {max(before, key=lambda f: f.begin).at: 1} if before else {}

    def turn(self, atom: Any, turns: Mapping[int, int]) -> int:
        """Return the largest number of the collectives that an atom needs; 0 for none."""
        memory = self.live.of(atom)
        needed = {f.at for f in self.flights if f.at in turns and memory & self.live.of(f.values)}
        made = self.made.get(atom)
        needed |= set() if made is None else self.of[made]
        return max((turns[i] for i in needed if i in turns), default=0)

    def bytes_behind(self, atoms: Sequence[Expr], at: int) -> int:
        """Return how many bytes behind a binding are gathered where atoms are."""
        memories = {memory for atom in atoms for memory in self.live.memory(atom)}
        found = (self.gathered[m] for m in memories if m in self.gathered)
        return sum(count for number, count in found if number > at)


class _Update:
    """An update of main, by the number of its binding.

    parts: in how many parts all that is gathered behind it is. lists: its lists of tensors, by
    name. gathered: for each parameter, how many bytes are gathered behind the update.
    """

    def __init__(self, at: int, known: _Needs, parts: int) -> None:
        self.at, self.known, self.parts = at, known, parts
        self.binding = known.bindings[at]
        call, update = self.binding.value, called_op(self.binding.value)
        assert update is not None and isinstance(call, Call)
        self.call, self.update = call, update
        self.args = named_args(update, call)
        self.lists = {n: a.fields for n, a in self.args.items() if isinstance(a, Tuple) if a.fields}
        self.count = len(self.lists.get("x", ()))
        written = [self.lists[n] for n in ("x", "copies") if n in self.lists]
        self.gathered = [known.bytes_behind(atoms, at) for atoms in zip(*written, strict=True)]

    def parted(self, turns: Mapping[int, int] | None, moved: set[int]) -> list[Binding] | None:
        """Return the update in parts, and before each part the bindings that are made of its
        collectives, which are noted as moved; None if it cannot be.

        turns: of collectives, which part needs them, 0 or 1. None: all parts need the same.
        """
        known, first = self.known, 0
        slots = (s.name for s in self.update.slots if s.kind == "tensors")
        if not all(isinstance(self.args[name], Tuple | tuple) for name in slots):
            return None
        groups: dict[int, list[int]] = {}
        for i, gradient in enumerate(self.lists.get("dx", ())):
            groups.setdefault(known.turn(gradient, turns or {}), []).append(i)
        between: dict[int, int] = {}
        if turns is not None:
            first = min(groups, default=0)
            others = [a for n, a in self.args.items() if n not in self.lists]
            late = (known.turn(a, turns) > first for a in others if isinstance(a, Expr))
            if len(groups) < 2 or any(late):
                return None
            between = self._between(turns, first)
            if not self._may_move(between):
                return None
        pieces = [(turn, one) for turn in sorted(groups) for one in self._pieces(groups[turn])]
        if len(pieces) < 2 or not all(self._is_row(one) for _, one in pieces):
            return None
        if turns is None:
            pieces.sort(key=self._need)
        made: list[Binding] = []
        for turn, piece in pieces:
            due = [i for i in between if between[i] <= turn and i not in moved]
            made += [known.bindings[i] for i in due]
            moved.update(due)
            made += self._part(piece, last=piece is pieces[-1][1])
        behind = [i for i in between if i not in moved]
        moved.update(behind)
        return [*made, *(known.bindings[i] for i in behind)]

    def _need(self, piece: tuple[int, list[int]]) -> int:
        """Return 1 for parameters whose gradients come last, 0 for others."""
        known = self.known
        late = known.late(self.at) or known.last(self.at)
        return max(known.turn(self.lists["dx"][i], late) for i in piece[1])

    def _between(self, turns: Mapping[int, int], first: int) -> dict[int, int]:
        """Return the bindings before the update that only later parts need, with whose turn."""
        found = {}
        for i in range(self.at):
            needed = [turns[j] for j in self.known.of[i] if j in turns]
            if needed and max(needed) > first and i not in turns:
                found[i] = max(needed)
        return found

    def _may_move(self, between: Mapping[int, int]) -> bool:
        """Whether bindings may come behind the first part of the update."""
        known, nodes = self.known, self.known.nodes
        # The first part writes memory: nothing that reads it may come behind.
        inputs = {n.position for n in nodes[self.at].inputs}
        ordered = {n.position for n in nodes[self.at].after} - inputs
        writing = any(known.effects.writes(known.bindings[i]) for i in between)
        # What stays where it is, such as a collective, needs nothing that comes later.
        stay = (nodes[i] for i in range(self.at) if i not in between)
        before = {n.position for node in stay for n in (*node.inputs, *node.after)}
        return not writing and (ordered | before).isdisjoint(between)

    def _pieces(self, members: list[int]) -> Iterator[list[int]]:
        """Yield parameters in parts of which about equal bytes are gathered behind the update."""
        whole = sum(self.gathered)
        if not whole:
            yield members
            return
        own = sum(self.gathered[i] for i in members)
        count = min(max(1, round(self.parts * own / whole)), max(1, own // MIN_CHUNK_BYTES))
        left, piece, taken = own, list[int](), 0
        for i in members:
            size = self.gathered[i]
            is_full = taken >= MIN_CHUNK_BYTES and taken + size / 2 > own / count
            if piece and is_full and left >= MIN_CHUNK_BYTES:
                yield piece
                piece, taken = [], 0
            piece.append(i)
            taken, left = taken + size, left - size
        yield piece

    def _rates(self) -> Iterator[tuple[str, TensorType]]:
        """Yield the arguments that have a number for each parameter."""
        for name in RATES:
            type_ = atom_type(self.args[name])
            if isinstance(type_, TensorType) and type_.shape == (self.count,) != (1,):
                yield name, type_

    def _is_row(self, piece: Sequence[int]) -> bool:
        """Whether the numbers of a part of the parameters are there, as a part of those of all."""
        return not any(self._rates()) or piece[-1] - piece[0] == len(piece) - 1

    def _part(self, piece: Sequence[int], last: bool) -> Iterator[Binding]:
        """Yield an update of some of the parameters."""
        name, span = self.binding.var.name, self.binding.span
        own: dict[str, Expr] = {
            n: Tuple(tuple(fields[i] for i in piece)) for n, fields in self.lists.items()
        }
        for rate, type_ in self._rates():
            own[rate] = var = Var(rate, type_.with_shape((len(piece),)))
            ends = (piece[0],), (piece[-1] + 1,)
            yield Binding(var, new_call(op.strided_slice, self.args[rate], *ends), span)
        call = Call(self.call.callee, tuple(own.get(n, a) for n, a in self.args.items()))
        yield Binding(self.binding.var if last else Var(name, TupleType(())), call, span)


def _gathered_in_place(binding: Binding) -> tuple[Expr, ...]:
    """Return what a binding gathers in place among several ranks."""
    call = binding.value
    if called_op(call) is not _GATHER:
        return ()
    assert isinstance(call, Call) and isinstance(call.args[0], Tuple)
    return call.args[0].fields if call.args[2] > 1 else ()


def _chunk_gathers(bindings: Sequence[Binding], live: Liveness, count: int) -> Iterator[Binding]:
    """Yield bindings with what is gathered in place in parts, each of what is written at about the
    same time.
    """
    writer: dict[Memory, int] = {}
    for number, binding in enumerate(bindings):
        atoms = _gathered_in_place(binding)
        groups: dict[int, list[Expr]] = {}
        for atom in atoms:
            written = max((writer.get(m, -1) for m in live.memory(atom)), default=-1)
            groups.setdefault(written, []).append(atom)
        whole = sum(type_bytes(type_of(atom)) for atom in atoms)
        enough = max(MIN_CHUNK_BYTES, whole // (2 * count)) if count > 1 else whole
        parts = list(_merge_groups([groups[at] for at in sorted(groups)], enough))
        for part in parts[:-1]:
            var = Var(binding.var.name, TupleType(()))
            yield Binding(var, _call_on(binding.value, part), binding.span)
        if parts:
            yield Binding(binding.var, _call_on(binding.value, parts[-1]), binding.span)
        else:
            yield binding
        for memory in _written_memory(binding.value, live):
            writer[memory] = number


def _call_on(value: Expr, atoms: Sequence[Expr]) -> Call:
    """Return a call on several tensors as one on these."""
    assert isinstance(value, Call)
    return Call(value.callee, (Tuple(tuple(atoms)), *value.args[1:]))


def _merge_groups(groups: Sequence[list[Expr]], enough: int) -> Iterator[list[Expr]]:
    """Yield lists of atoms joined with the next ones until they have so many bytes."""
    row: list[Expr] = []
    for group in groups:
        row += group
        if sum(type_bytes(type_of(atom)) for atom in row) >= enough:
            yield row
            row = []
    if row:
        yield row


def _written_memory(value: Expr, live: Liveness) -> Iterator[Memory]:
    """Yield the memory that a call of an operator writes in place."""
    called: Op | None = base_op(value.callee) if isinstance(value, Call) else None
    if called is not None and isinstance(value, Call):
        for atom in written_atoms(called, value):
            yield from live.memory(atom)
