"""Collectives beside other work: begun as early as can be, and waited for as late as can be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from meta import op
from meta.base.device import Device
from meta.ir import (
    Binding,
    Call,
    Expr,
    GraphNode,
    Module,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Var,
    operands,
    to_graph,
    type_of,
)
from meta.op.core.update import OPTIMIZERS, RATES
from meta.passes.calls import called_op, named_args, new_call, type_if_atom, view_source
from meta.passes.dispatch import dispatch
from meta.passes.distributed.bucket_collectives import MIB, SHARE
from meta.passes.effects import Effects
from meta.passes.lifetimes import Lifetimes, type_bytes
from meta.passes.rewrite import with_main

STARTS = {
    op.multi_tensor_all_reduce: op.multi_tensor_all_reduce_start,
    op.all_gather: op.all_gather_start,
    op.multi_tensor_all_gather: op.multi_tensor_all_gather_start,
    op.reduce_scatter: op.reduce_scatter_start,
    op.multi_tensor_reduce_scatter: op.multi_tensor_reduce_scatter_start,
}
"""By collective, the operator that begins it. The first of them writes to its first argument."""
GATHERS = op.all_gather, op.multi_tensor_all_gather
FEW = 8
"""Kernels that do not need a collective and follow on its start, where hardly any follow."""


def schedule_collectives(
    module: Module,
    *,
    device: Device,
    in_flight_mib: float = 1024.0,
    apart_mib: float = 64.0,
) -> Module:
    """Split the collectives of main into a start and a wait, with other work between them.

    A collective starts behind the last binding that it depends on, and is waited for before the
    first one that depends on it. At most ``in_flight_mib`` MiB are in flight at a time: before more
    start, the oldest are waited for. Starts keep the order of what they depend on, which is that of
    the program, so it is the same on all ranks. One with no kernel between the two is left whole.

    Gathers and scattered sums, which are not done in place, take memory for what they are given and
    return meanwhile: at most ``apart_mib`` MiB and a sixteenth of all of them, but at least one at
    a time. A sum is waited for before another one starts that would be too much; a gather starts
    when what was gathered before is used up, and also beside what is there for a later use, as long
    as the worst moment of the program gets no worse. The cast of what is gathered comes with the
    start. With an ``apart_mib`` of 0 they stay whole.

    An update of all parameters would wait for the last collectives: the parameters whose gradients
    these bring are updated by a call of their own, behind the others.

    The memory of what is communicated is in use until the wait. On CUDA a start runs on a second
    stream, also in a CUDA graph, and a wait lets the first stream wait for it; on the CPU another
    thread exchanges. To be run after `memory_schedule`, which would not keep the two apart.

    >>> from meta.base.device import CPU
    >>> from meta.dialect import only
    >>> from meta.ir import parse
    >>> from meta.passes import bucket_collectives, dispatch
    >>> with only("torch", "gloo"):
    ...     print(schedule_collectives(dispatch(bucket_collectives(parse('''
    ... func @main(%x: float32[8], %y: float32[8]) -> float32[8] {
    ...   %g: float32[8] = exp(%x)
    ...   %h: float32[8] = tanh(%y)
    ...   %a: float32[8] = all_reduce(%g, over="dp", size=2, reduction="mean")
    ...   %z: float32[8] = add(%a, %h)
    ...   return %z
    ... }''')), device=CPU), device=CPU))
    func @main(%x: float32[8], %y: float32[8]) -> float32[8] {
      %g: float32[8] = torch.exp(%x)
      %bucket: () = gloo.multi_tensor_all_reduce_start((%g,), over="dp", size=2, reduction="mean", \
align=64)
      %h: float32[8] = torch.tanh(%y)
      %wait: () = gloo.collective_wait((%g,), over="dp", size=2)
      %z: float32[8] = torch.add(%g, %h)
      return %z
    }
    """
    parted = _with_parted_updates(module)
    wanted = [f for f in _flights(parted) if f.has_work]
    flights = [f for f in wanted if apart_mib > 0 or not f.is_apart]
    if not flights:
        return module
    apart = sum(f.bytes for f in flights if f.is_apart)
    limits = in_flight_mib * MIB, min(apart_mib * MIB, apart / SHARE)
    _delay_gathers(parted, flights, limits[1])
    placed = _placed(parted, flights, limits)
    return dispatch(with_main(parted, placed), device=device)


@dataclass(eq=False)
class _Flight:
    """A collective by the number of its binding: what starts it behind binding ``begin``, and what
    waits for it before binding ``end``; whether work can run beside it. is_apart: whether what it
    returns is other memory than what it is given. casts: the numbers of bindings that come with the
    start, as nothing else reads them.
    """

    at: int
    begin: int
    end: int
    values: Expr
    bytes: int
    start: Binding
    wait: Binding
    has_work: bool
    is_apart: bool
    casts: frozenset[int] = frozenset()

    @property
    def is_gather(self) -> bool:
        """Whether the result is larger than what is given, which is waited for late then."""
        return self.is_apart and type_bytes(type_of(self.values)) == self.bytes


def _flights(module: Module) -> Iterator[_Flight]:
    """Yield the collectives of main that can be apart."""
    main = module.main
    if not any(called_op(b.value) in STARTS for b in main.body.bindings):
        return
    nodes = to_graph(main.body, Effects(main, Lifetimes(main, module)).places)
    # A view reads nothing: who reads it does.
    first_after = [len(nodes)] * len(nodes)
    for node in reversed(nodes):
        at = first_after[node.position] if _is_view(node.binding) else node.position
        for before in (*node.inputs, *node.after):
            first_after[before.position] = min(first_after[before.position], at)
    split = set[int]()
    followers: list[list[int]] = [[] for _ in nodes]
    for node in nodes:
        for one in {*node.inputs, *node.after}:
            followers[one.position].append(node.position)
    leaving = set(operands(main.body.result))
    for node in nodes:
        call = node.binding.value
        start = STARTS.get(called_op(call))
        if start is None or not isinstance(call, Call) or call.args[2] == 1:
            continue
        casts = {n for n in _casts(node, followers) if n.binding.var not in leaving}
        inputs = [i for n in node.inputs for i in (n.inputs if n in casts else (n,))]
        needed = {n.position for n in (*inputs, *node.after, *(a for c in casts for a in c.after))}
        # What another one is needed for comes where it is, behind the wait.
        begin = node.position if needed & split else max(needed, default=-1)
        end = first_after[node.position]
        own = {node.position, *(cast.position for cast in casts)}
        beside = (nodes[i].binding for i in range(begin + 1, end) if i not in own)
        has_work = any(map(_is_work, beside))
        if has_work:
            split.add(node.position)
        values, over, size = call.args[:3]
        var, span = node.binding.var, node.binding.span
        count = type_bytes(type_of(values))
        wait = new_call(op.collective_wait, values, over, size)
        if start is not op.multi_tensor_all_reduce_start:
            given = values if isinstance(values, Tuple) else Tuple((values,))
            values = var if isinstance(var.type, TupleType) else Tuple((var,))
            count = max(count, type_bytes(var.type))
            wait = new_call(op.collective_wait, values, over, size, given)
        yield _Flight(
            *(node.position, begin, end, values, count),
            Binding(var, Call(start, call.args), span),
            Binding(Var("wait", TupleType(())), wait, span),
            has_work,
            start is not op.multi_tensor_all_reduce_start,
            frozenset(cast.position for cast in casts),
        )


def _casts(node: GraphNode, followers: list[list[int]]) -> set[GraphNode]:
    """Return the casts that nothing before a gather, nor anything else, needs: of parts of
    parameters, which are gathered narrow and written when they are updated.
    """
    if called_op(node.binding.value) not in GATHERS:
        return set()
    casts = {one for one in node.inputs if called_op(one.binding.value) is op.astype}
    return {one for one in casts if min(followers[one.position]) == node.position}


def _is_work(binding: Binding) -> bool:
    """Whether a binding takes time: it launches a kernel that is no collective, or calls others."""
    call = binding.value
    if not isinstance(call, Call):
        return bool(call.spec.blocks)
    return called_op(call) not in STARTS and not _is_view(binding)


def _is_view(binding: Binding) -> bool:
    """Whether a binding is one memory seen otherwise, or a field of a tuple."""
    call = binding.value
    return isinstance(call, TupleGetItem) or (
        isinstance(call, Call) and view_source(call) is not None
    )


def _with_parted_updates(module: Module) -> Module:
    """Return the module with updates that wait for collectives in two parts, of which the second
    needs those that start at the end of the program, and what is made of these collectives between
    the two.
    """
    flights = list(_flights(module))
    bindings = module.main.body.bindings
    updates = [i for i, b in enumerate(bindings) if called_op(b.value) in OPTIMIZERS]
    if not flights or not updates:
        return module
    known = _Needs(module, flights)
    parts: dict[int, list[Binding]] = {}
    moved: set[int] = set()
    for i in updates:
        for turns in (known.late(i), known.last(i)):
            found = _parted(i, known, turns, moved)
            if found is not None:
                parts[i] = found
                break
    made = [parts.get(i, [b]) for i, b in enumerate(bindings) if i not in moved]
    return with_main(module, [b for part in made for b in part])


class _Needs:
    """What the bindings of main need of its collectives.

    of: by the number of a binding, the numbers of the collectives that it follows on.
    """

    def __init__(self, module: Module, flights: list[_Flight]) -> None:
        self.bindings, self.flights = module.main.body.bindings, flights
        self.live = Lifetimes(module.main, module)
        self.effects = Effects(module.main, self.live)
        self.nodes = to_graph(module.main.body, self.effects.places)
        self.made = {b.var: i for i, b in enumerate(self.bindings)}
        at = {flight.at for flight in flights}
        self.of: list[frozenset[int]] = []
        for node in self.nodes:
            before = [n.position for n in (*node.inputs, *node.after)]
            needed = frozenset[int]().union(*(self.of[i] for i in before))
            self.of.append(needed | (at & {node.position}))

    @property
    def alone(self) -> list[bool]:
        """Whether a binding runs a kernel that needs no collective."""
        return [_is_work(b) and not self.of[i] for i, b in enumerate(self.bindings)]

    def late(self, end: int) -> dict[int, int]:
        """Return 1 for the collectives with little beside them until a binding: few kernels follow
        on their start that need none.
        """
        alone = self.alone[:end]
        before = (f for f in self.flights if f.at < end)
        return {f.at: 1 for f in before if sum(alone[f.begin + 1 :]) <= FEW}

    def last(self, end: int) -> dict[int, int]:
        """Return 1 for the collective that starts last."""
        before = [f for f in self.flights if f.at < end]
        return {max(before, key=lambda f: f.begin).at: 1} if before else {}

    def turn(self, atom: Any, turns: dict[int, int]) -> int:
        """Return the largest number of the collectives that an atom needs; 0 for none."""
        memory = self.live.of(atom)
        needed = {f.at for f in self.flights if f.at in turns and memory & self.live.of(f.values)}
        made = self.made.get(atom)
        needed |= set() if made is None else self.of[made]
        return max((turns[i] for i in needed if i in turns), default=0)


def _parted(at: int, known: _Needs, turns: dict[int, int], moved: set[int]) -> list[Binding] | None:
    """Return an update in parts, by the ``turns`` of the collectives that its gradients need, and
    before each part the bindings that are made of its collectives, which are noted as moved. None
    if it cannot be.
    """
    binding = known.bindings[at]
    call = binding.value
    update = called_op(call)
    assert update is not None and isinstance(call, Call)
    args = named_args(update, call)
    lists = {n: a.fields for n, a in args.items() if isinstance(a, Tuple) and a.fields}
    count = len(lists.get("x", ()))
    rates = (type_if_atom(args[name]) for name in RATES)
    each_its_own = any(isinstance(t, TensorType) and t.shape == (count,) != (1,) for t in rates)
    whole = all(
        isinstance(args[s.name], Tuple | tuple) for s in update.slots if s.kind == "tensors"
    )
    if not turns or each_its_own or not whole:
        return None
    groups: dict[int, list[int]] = {}
    for i, gradient in enumerate(lists["dx"]):
        groups.setdefault(known.turn(gradient, turns), []).append(i)
    first = min(groups, default=0)
    others = [a for n, a in args.items() if n not in lists and isinstance(a, Expr)]
    if len(groups) < 2 or any(known.turn(a, turns) > first for a in others):
        return None
    between = {}
    for i in range(at):
        needed = [turns[j] for j in known.of[i] if j in turns]
        if needed and max(needed) > first and i not in turns:
            between[i] = max(needed)
    # The first part writes memory: nothing that reads it may come behind.
    inputs = {n.position for n in known.nodes[at].inputs}
    ordered = {n.position for n in known.nodes[at].after} - inputs
    writing = any(known.effects.writes(known.bindings[i]) for i in between)
    # What stays where it is, such as a collective, needs nothing that comes later.
    stay = (known.nodes[i] for i in range(at) if i not in between)
    before = {n.position for node in stay for n in (*node.inputs, *node.after)}
    if writing or not (ordered | before).isdisjoint(between):
        return None
    made: list[Binding] = []
    for turn in sorted(groups):
        made += [known.bindings[i] for i in between if between[i] <= turn and i not in moved]
        moved.update(i for i in between if between[i] <= turn)
        own = {n: Tuple(tuple(fields[i] for i in groups[turn])) for n, fields in lists.items()}
        part = Call(update, tuple(own.get(n, a) for n, a in args.items()))
        var = binding.var if turn == max(groups) else Var(binding.var.name, TupleType(()))
        made.append(Binding(var, part, binding.span))
    behind = [i for i in between if i not in moved]
    moved.update(behind)
    return [*made, *(known.bindings[i] for i in behind)]


def _delay_gathers(module: Module, flights: list[_Flight], limit: float) -> None:
    """Let gathers start later, at their place at the latest, where more than ``limit`` bytes would
    be gathered and not used up yet; not while so much memory is free, compared with the worst
    moment of the program, that those are not counted which are there for a later use.
    """
    live = Lifetimes(module.main, module)
    room = np.array(live.live_bytes())
    room = room.max() - room
    under_way = np.zeros(len(room), np.int64)
    # When the results are used up, and how many bytes they are.
    gathered: list[tuple[int, int]] = []
    before = -1
    for flight in flights:
        if not flight.is_gather:
            continue
        # In the order in which they are needed, since one waits for the other.
        early = late = max(flight.begin, before)
        while gathered and flight.bytes + sum(count for _, count in gathered) > limit:
            first = min(gathered)
            gathered.remove(first)
            late = max(late, min(first[0], flight.at))
        last = max(live.buffers[number].last for number in live.of(flight.values))
        gathered.append((last, flight.bytes))
        taken = under_way[early + 1 : flight.at] + flight.bytes
        full = (taken > np.minimum(limit, room[early + 1 : flight.at])).nonzero()[0]
        flight.begin = before = min(late, early + 1 + int(full[-1]) if len(full) else early)
        under_way[flight.begin + 1 : flight.at] += flight.bytes


def _placed(
    module: Module, flights: list[_Flight], limits: tuple[float, float]
) -> Iterator[Binding]:
    """Yield the bindings of main with starts and waits in place."""
    bindings = module.main.body.bindings
    begun: dict[int, list[_Flight]] = {}
    for flight in flights:
        begun.setdefault(flight.begin, []).append(flight)
    whole = {i for flight in flights for i in (flight.at, *flight.casts)}
    # In the order of their starts.
    flying: list[_Flight] = []
    for i in range(-1, len(bindings) + 1):
        for flight in [f for f in flying if f.end == i]:
            flying.remove(flight)
            yield flight.wait
        if 0 <= i < len(bindings) and i not in whole:
            yield bindings[i]
        for flight in begun.get(i, ()):
            for kinds, limit in zip(((False, True), (True,)), limits, strict=True):
                waits = [f for f in flying if flight.is_apart in kinds and f.is_apart in kinds]
                while waits and flight.bytes + sum(f.bytes for f in waits) > limit:
                    flying.remove(waits[0])
                    yield waits.pop(0).wait
            flying.append(flight)
            yield from (bindings[number] for number in sorted(flight.casts))
            yield flight.start
