"""Whether kernels may run where results overwrite arguments: that nothing is read too late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from meta.dialect.tvm.lower import OVERWRITTEN
from meta.dialect.tvm.schedule_cuda.walk import KernelBlock, all_reads
from meta.dialect.tvm.stages import at_axes


def overwriting(function: tirx.PrimFunc) -> set[tuple[Any, Any]]:
    """Return the pairs (argument, result) of a function that are in the same memory."""
    if not function.attrs or OVERWRITTEN not in function.attrs:
        return set()
    places = [int(place) for place in function.attrs[OVERWRITTEN]]
    results = function.params[len(function.params) - len(places) :]
    return {(function.params[at], result) for at, result in zip(places, results, strict=True)}


@dataclass(frozen=True)
class Group:
    """The parts of some kernels, in order. by_rows: whether it is one of `rows`, where a thread
    reads the same elements of its row for each part, stores to those only, and reads no others.
    """

    parts: list[KernelBlock]
    by_rows: bool


def safe(groups: Sequence[Group], inner: set[Any], pairs: set[tuple[Any, Any]]) -> bool:
    """Whether kernels of these parts, in this order, read all arguments before they change.

    In the kernel that overwrites it, an argument may be read at the element that is written: by the
    same thread, before it stores anything. A reduction reads other elements than the one that it
    writes; one of rows does so before any part that comes behind it stores.
    """
    written: set[Any] = set()
    made = {part.stage.buffer for group in groups for part in group.parts}
    for group in groups:
        now = {part.stage.buffer for part in group.parts} - inner
        stored: set[Any] = set()
        for part in group.parts:
            for node in all_reads(part.value):
                if node.source in made:
                    continue
                if any((node.source, one) in pairs for one in written | stored):
                    return False
                own = at_axes(node.indices, part.stage.axes)
                if part.stage.reduce and not group.by_rows:
                    own = False
                if not own and any((node.source, one) in pairs for one in now):
                    return False
            if group.by_rows:
                stored.add(part.stage.buffer)
        written |= now
    return True
