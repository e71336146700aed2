"""How a kernel of rows goes about it: what it reads, in which vectors, by how many threads.

Which stages have the same rows, so that one kernel computes them; see `rows`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from meta.dialect.tvm.schedule_cuda.walk import (
    Axes,
    KernelBlock,
    all_reads,
    compact,
    computed_by,
    element_values,
    reads,
    reads_of_others,
    values_at,
)
from meta.dialect.tvm.target import processors

ELEMENT, REDUCED, SCALAR = "element", "reduced", "scalar"


@dataclass(frozen=True)
class Walk:
    """A read: its strides along the axes of the rows and those within a row, and its start."""

    buffer: Any
    rows: tuple[int, ...]
    cols: tuple[int, ...]
    start: int


@dataclass(frozen=True, eq=False)
class Member:
    """A stage and what it computes of a row: its elements, a reduction of it, or one value."""

    part: KernelBlock
    role: str


@dataclass(frozen=True)
class RowLayout(Axes):
    """Axes of which those of results count rows, and the reduced ones lie within a row."""

    @property
    def rows(self) -> tuple[int, ...]:
        """The extents of the axes that count rows."""
        return self.results

    @property
    def cols(self) -> tuple[int, ...]:
        """The extents of the axes within a row."""
        return self.reduced

    def member(self, part: KernelBlock) -> Member | None:
        """Return a stage with its role, None if it has other axes."""
        own = RowLayout.of(part)
        if part.stage.reduce:
            return Member(part, REDUCED) if own == self and part.combine is not None else None
        if own.results == (*self.rows, *self.cols):
            return Member(part, ELEMENT)
        return Member(part, SCALAR) if own.results == self.rows else None

    def row_walk(self, member: Member, node: Any) -> Walk | None:
        """Return how a read of a stage walks; None if it is by other values than the axes."""
        found = self.walk(member.part, node)
        if found is None:
            return None
        n = len(self.rows)
        return Walk(found.buffer, found.strides[:n], found.strides[n:], found.start)

    def along(self, walk: Walk) -> bool:
        """Whether a read is of adjacent elements along the row."""
        return walk.cols == compact(self.cols)

    def same_place(self, reader: Member, node: Any, made: Member) -> bool:
        """Whether a read of another stage is at its own row, and at its own element of it."""
        walk = self.row_walk(reader, node)
        if walk is None or walk.start != 0:
            return False
        if made.role == ELEMENT:
            return (*walk.rows, *walk.cols) == compact((*self.rows, *self.cols))
        return walk.rows == compact(self.rows) and not any(walk.cols)

    def row_values(self, row: Any, zero: Any) -> list[Any]:
        """Return the values of the rows' axes."""
        return element_values(self.rows, row, zero)

    def axis_values(
        self, member: Member, rows: Sequence[Any], place: Any, kernel: Kernel
    ) -> dict[Any, Any]:
        """Return the values of a stage's axes at a place of the row."""
        zero = kernel.number(0)
        within = [] if member.role == SCALAR else element_values(self.cols, place, zero)
        return values_at(member.part, [*rows, *within], zero)


def layout_of(part: KernelBlock) -> RowLayout | None:
    """Return the rows of a reduction, None if it does not go along what it reads."""
    if part.combine is None:
        return None
    layout = RowLayout.of(part)
    if not layout.cols:
        return None
    member = layout.member(part)
    return layout if member is not None and _goes_along(layout, member, {}) else None


def members_of(parts: Sequence[KernelBlock]) -> tuple[RowLayout, list[Member]] | None:
    """Return a layout and the stages that fit it, of the first reduction for which there are some.

    A layout for which more stages would fit after another kernel comes after that.
    """
    incomplete, missing = None, computed_by(parts)
    for reduction in parts:
        layout = layout_of(reduction) if reduction.stage.reduce else None
        if layout is None:
            continue
        made: dict[Any, Member] = {}
        for part in parts:
            member = layout.member(part)
            if member is not None and _fits(layout, member, made, missing):
                made[part.stage.buffer] = member
        if reduction.stage.buffer not in made:
            continue
        found = layout, list(made.values())
        if not _waiting(layout, parts, made):
            return found
        incomplete = incomplete or found
    return incomplete


def _waiting(layout: RowLayout, parts: Sequence[KernelBlock], made: dict[Any, Member]) -> bool:
    """Whether a stage with the layout's axes needs what could be made without the others."""
    by_buffer = {part.stage.buffer: part for part in parts}

    def needs(part: KernelBlock) -> set[Any]:
        return {node.source for node in reads_of_others(part)}

    def apart(buffer: Any) -> bool:
        part = by_buffer.get(buffer)
        if part is None:  # an argument, or in memory
            return True
        return buffer not in made and all(map(apart, needs(part)))

    for part in parts:
        if part.stage.buffer in made or layout.member(part) is None:
            continue
        missing = [b for b in needs(part) if b in by_buffer and b not in made]
        if missing and all(map(apart, missing)):
            return True
    return False


def _fits(layout: RowLayout, member: Member, made: dict[Any, Member], missing: set[Any]) -> bool:
    for node in reads_of_others(member.part):
        producer = made.get(node.source)
        if producer is None:
            if node.source in missing:
                return False
        elif not layout.same_place(member, node, producer):
            return False
    return member.role != REDUCED or _goes_along(layout, member, made)


def _goes_along(layout: RowLayout, member: Member, made: dict[Any, Member]) -> bool:
    """Whether a reduction reads an array with all its rows, or one that is made, none across."""
    whole = False
    for node in reads_of_others(member.part):
        producer = made.get(node.source)
        if producer is not None:
            whole = whole or producer.role == ELEMENT
            continue
        walk = layout.row_walk(member, node)
        if walk is None or not any(walk.cols):
            continue
        if not layout.along(walk):
            return False
        whole = whole or all(walk.rows)
    return whole


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
