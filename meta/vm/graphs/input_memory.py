"""Where inputs of a region are copied to before a replay: memory of the program that is free then.

A tensor of the arena that is computed behind the last read of an input may lie where the copy did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meta.ir import type_bytes
from meta.runtime.allocate import aligned
from meta.vm.compiler import bytecode as bc
from meta.vm.graphs.regions import GraphRegion

LEAST = 1 << 20
"""Bytes of an input from which on it is worth looking for memory."""


def free_offsets(
    block: Sequence[bc.Instruction],
    region: GraphRegion,
    sizes: Mapping[bc.Register, int],
    gaps: Sequence[tuple[int, int]],
    size: int,
) -> dict[bc.Register, int]:
    """Return offsets in the memory of a straight-line program for copies of a region's inputs, of
    these sizes in bytes, as many as have room: nothing lies there when the region begins, and
    nothing is written there until each was read for the last time.

    gaps: parts of the memory, which is ``size`` bytes, in which nothing may lie.
    """
    roots, last = {r: r for r in sizes}, dict[bc.Register, int]()
    for at in range(region.begin, region.end):
        i = block[at]
        if isinstance(i, bc.Release):
            continue
        last |= {roots[r]: at for r in i.reads if r in roots}
        if isinstance(i, bc.ViewTensor | bc.OwnShard) and i.source in roots:
            roots[i.out] = roots[i.source]
    handed_on = {roots[r] for r in region.outs if r in roots}
    placed = [
        (at, i.offset, i.offset + type_bytes(i.type))
        for at, i in enumerate(block)
        if isinstance(i, bc.AllocateTensor) and i.storage is not None
    ]
    found: dict[bc.Register, int] = {}
    taken = list(gaps)
    for r in sorted(last.keys() - handed_on, key=lambda r: (-sizes[r], r)):
        offset = 0
        for begin, end in sorted([*taken, *((b, e) for at, b, e in placed if at <= last[r])]):
            if offset + sizes[r] <= begin:
                break
            offset = max(offset, aligned(end))
        if sizes[r] >= LEAST and offset + sizes[r] <= size:
            found[r] = offset
            taken.append((offset, offset + sizes[r]))
    return found
