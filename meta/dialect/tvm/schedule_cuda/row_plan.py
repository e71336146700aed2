"""How a kernel of rows goes about it: what it reads, in which vectors, by how many threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from meta.dialect.core.knobs import ask
from meta.dialect.tvm.floats import subtracted
from meta.dialect.tvm.schedule_cuda.emit import (
    ACCESS_BYTES,
    TINY,
    WARP,
    Kernel,
    divided,
    itemsize,
    power_of_two_in,
    substituted,
)
from meta.dialect.tvm.schedule_cuda.row_stages import ELEMENT, REDUCED, Member, RowLayout, Walk
from meta.dialect.tvm.schedule_cuda.walk import all_reads, compact, reads
from meta.dialect.tvm.target import processors

BLOCK, MAX_THREADS = 256, 1024
BUSY = 1024
"""Threads that keep a multiprocessor busy."""
MAX_VECTOR = 8
LEAST_SHIFTED = 2048
"""Elements of a row from which on it is worth to look after its ends."""
HELD, MOST_HELD = 128, 176
"""Bytes of a row that a thread holds in registers, and the most where rows are very long."""
RESIDENT = 96
"""Bytes that it holds of a row that it cannot hold, so that less is read again."""


class RowPlan:
    """What a kernel of rows reads, how wide, and with how many threads for each row.

    along: what is read along the rows. weights: what is read along every row alike. of_row: single
    values of a row. kept: stages whose elements are read by others. online: the maxima of sums of
    exponentials. vector: elements of an access; vectors: of a row. threads: of a row, `together`
    rows in a thread block. holds: whether they hold the row in registers; resident: how many
    vectors each holds otherwise. shifted: whether the vectors are those of the whole array, of
    which a row begins and ends within one.
    """

    def __init__(self, layout: RowLayout, members: Sequence[Member], outside: set[Any]) -> None:
        self.layout, self.members = layout, members
        self.by_buffer = {m.part.stage.buffer: m for m in members}
        self.outside = outside
        axes = next(m.part.stage.axes for m in members if m.part.stage.axes)
        self.k = Kernel(str(axes[0].ty.dtype))
        self.online = online(members)
        self._find_inputs()
        self._choose()

    def _find_inputs(self) -> None:
        along: dict[Walk, None] = {}
        weights: dict[Walk, None] = {}
        of_row: dict[Walk, None] = {}
        for member in self.members:
            for node in reads(member.part.value)[0]:
                if node.source in self.by_buffer:
                    continue
                walk = self.layout.row_walk(member, node)
                if walk is None:
                    continue
                if not any(walk.cols):
                    of_row[walk] = None
                elif self.layout.along(walk):
                    (along if any(walk.rows) or self.layout.count == 1 else weights)[walk] = None
        self.along, self.weights, self.of_row = list(along), list(weights), list(of_row)
        read = {node.source for m in self.members for node in all_reads(m.part.value)}
        self.kept = [m for m in self.members if m.role == ELEMENT and m.part.stage.buffer in read]

    def _choose(self) -> None:
        """Choose the vector, the threads of a row, and whether they hold it."""
        size = self.layout.length
        written = [
            m.part.stage.buffer for m in self.members if m.role == ELEMENT and self._is_written(m)
        ]
        buffers = [*(w.buffer for w in (*self.along, *self.weights)), *written]
        wish = min(MAX_VECTOR, ACCESS_BYTES // min(map(itemsize, buffers), default=4))
        self.vector = power_of_two_in(size, wish)
        self.vectors = size // self.vector
        self.shifted = self.vector < wish and self._may_shift()
        if self.shifted:
            self.vector, self.vectors = wish, divided(size + wish - 1, wish)
        each_element = sum(itemsize(w.buffer) for w in self.along)
        each_element += sum(itemsize(m.part.stage.buffer) for m in self.kept)
        most = 1 << (self.vectors - 1).bit_length()
        threads = min(WARP, most)

        def held(threads: int) -> int:
            return divided(self.vectors, threads) * self.vector * each_element

        while threads < min(most, MAX_THREADS) and held(threads) > HELD:
            threads *= 2
        enough = BUSY * processors()
        while threads < min(most, BLOCK) and self.layout.count * threads < enough:
            threads *= 2
        once = len(self.members) == 2 * len(self.online)
        streams = once and threads > BLOCK
        if streams:  # to be read once in any case: by several blocks at a time
            threads = BLOCK
        holds = not streams and held(threads) <= MOST_HELD
        tiny = self.layout.count * size < TINY
        near = () if tiny else (threads // 4, threads // 2, threads * 2, threads * 4)
        fitting = [n for n in near if 1 <= n <= min(most, MAX_THREADS)]
        fitting = [n for n in fitting if not holds or held(n) <= MOST_HELD]
        self.threads, self.holds = ask("threads", threads, fitting), holds
        each_vector = self.vector * max(1, sum(itemsize(w.buffer) for w in self.along))
        self.resident = 0 if self.holds or once else min(self.whole, RESIDENT // each_vector)
        whole = 1 << (self.layout.count - 1).bit_length()
        least = max(1, WARP // self.threads)
        together = max(1, min(BLOCK // self.threads, max(whole, least)))
        near = () if tiny else (together // 4, together // 2, together * 2, together * 4)
        fitting = [n for n in near if least <= n and n * self.threads <= MAX_THREADS]
        self.together = ask("rows", together, fitting)

    @property
    def whole(self) -> int:
        """How many vectors every thread has; of a shifted row the last may be none."""
        return (self.vectors - int(self.shifted)) // self.threads

    def _may_shift(self) -> bool:
        """Whether all arrays are of adjacent long rows, so that they shift by the same."""
        pitch = tuple(step * self.layout.length for step in compact(self.layout.rows))
        return (
            self.layout.length >= LEAST_SHIFTED
            and bool(self.along)
            and not self.weights
            and all(walk.rows == pitch and walk.start == 0 for walk in self.along)
        )

    def _is_written(self, member: Member) -> bool:
        return member.part.stage.buffer in self.outside


def online(members: Sequence[Member]) -> dict[Member, Member]:
    """Return the sums of exponentials that a maximum of the row is subtracted from, with that.

    Both can be had in one sweep over the row, as `rows` does where a row is read anew for each.
    """
    by_buffer = {member.part.stage.buffer: member for member in members}
    found: dict[Member, Member] = {}
    for member in members:
        if member.role == REDUCED and isinstance(member.part.value, tirx.Add):
            largest = _maximum(member, by_buffer)
            if largest is not None and largest not in found.values():
                found[member] = largest
    return found


def _maximum(member: Member, by_buffer: Mapping[Any, Member]) -> Member | None:
    """Return the member m of a sum of exp(e - m), if m is the maximum of e."""
    value = _expanded(member.part.value.b, member, by_buffer)
    if not isinstance(value, tvm.ir.Call) or value.op.name != "tirx.exp":
        return None
    terms = subtracted(value.args[0])
    if terms is None or not isinstance(terms[1], tvm.ir.TensorLoad):
        return None
    largest = by_buffer.get(terms[1].source)
    if largest is None or largest.role != REDUCED:
        return None
    if not isinstance(largest.part.value, tirx.Max):
        return None
    axes = _axes(largest, member)
    if axes is None:
        return None
    of = _expanded(largest.part.value.b, largest, by_buffer)
    of = substituted(of, axes)
    return largest if tvm_ffi.structural_equal(of, terms[0]) else None


def _expanded(value: Any, reader: Member, by_buffer: Mapping[Any, Member]) -> Any:
    """Return an element with that of a stage of the row in its place, if it is one."""
    if not isinstance(value, tvm.ir.TensorLoad):
        return value
    made = by_buffer.get(value.source)
    if made is None or made.role != ELEMENT:
        return value
    axes = _axes(made, reader)
    return value if axes is None else substituted(made.part.value, axes)


def _axes(made: Member, reader: Member) -> dict[Any, Any] | None:
    """Return the axes of one stage by those of another; None if they have other extents."""
    ours, theirs = made.part.stage, reader.part.stage
    if (*ours.spatial, *ours.reduce) != (*theirs.spatial, *theirs.reduce):
        return None
    return dict(zip(ours.axes, theirs.axes, strict=True))
