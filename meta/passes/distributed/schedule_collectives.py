"""Collectives beside other work: begun as early as can be, and waited for as late as can be."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from meta.base.device import Device
from meta.ir import Binding, Module
from meta.passes.dispatch import dispatch
from meta.passes.distributed.bucket_collectives import MIB
from meta.passes.distributed.chunk_updates import chunk_updates, sink_shards
from meta.passes.distributed.overlap import Overlap, overlaps_of
from meta.passes.liveness import Liveness
from meta.passes.rewrite import with_main

MAX_SHARE = 16
"""The part of what is exchanged out of place, in all, that may be at a time: its inverse."""


def schedule_collectives(
    module: Module,
    *,
    device: Device,
    in_flight_mib: float = 1024.0,
    apart_mib: float = 64.0,
    gathered_parts: int = 4,
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
    these bring are updated by a call of their own, behind the others. What is gathered in place
    behind an update, such as parameters that each rank has updated a part of, is in about
    ``gathered_parts`` parts, of at least 8 MiB, and so is the update: one is gathered beside the
    update of the next. With 1 it is gathered behind the whole update.

    The memory of what is communicated is in use until the wait. On CUDA a start runs on a second
    stream, also in a CUDA graph, and a wait lets the first stream wait for it; on the CPU another
    thread exchanges. To be run after `memory_schedule`, which would not keep the two apart.

    >>> from meta.base.device import CPU
    >>> from meta.dialect import only
    >>> from meta.ir import parse
    >>> from meta.passes import bucket_collectives, dispatch
    >>> with only("torch", "gloo"):
    ...     print(meta.passes.schedule_collectives(dispatch(bucket_collectives(parse('''
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
    module = sink_shards(module)
    parted = chunk_updates(module, gathered_parts)
    wanted = [f for f in overlaps_of(parted) if f.has_work]
    flights = [f for f in wanted if apart_mib > 0 or not f.is_apart]
    if not flights:
        return module
    apart = sum(f.bytes for f in flights if f.is_apart)
    limits = in_flight_mib * MIB, min(apart_mib * MIB, apart / MAX_SHARE)
    _delay_gathers(parted, flights, limits[1])
    placed = _with_starts_and_waits(parted, flights, limits)
    return dispatch(with_main(parted, placed), device=device)


def _delay_gathers(module: Module, flights: list[Overlap], limit: float) -> None:
    """Let gathers start later, at their place at the latest, where more than ``limit`` bytes would
    be gathered and not used up yet; not while so much memory is free, compared with the worst
    moment of the program, that those are not counted which are there for a later use.
    """
    live = Liveness(module.main, module)
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


def _with_starts_and_waits(
    module: Module, flights: list[Overlap], limits: tuple[float, float]
) -> Iterator[Binding]:
    """Yield the bindings of main with starts and waits in place."""
    bindings = module.main.body.bindings
    begun: dict[int, list[Overlap]] = {}
    for flight in flights:
        begun.setdefault(flight.begin, []).append(flight)
    whole = {i for flight in flights for i in (flight.at, *flight.casts)}
    # In the order of their starts.
    flying: list[Overlap] = []
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
