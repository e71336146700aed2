"""Kernels of reductions along the last axes, with all that is computed of a row before and after.

A row belongs to some threads of one thread block. What is read along the row is read once, in
vectors, into registers; sums, maxima and the like are added up by shuffles and, beyond a warp,
through shared memory, so that every thread has them; what follows is computed from the registers.
A row that does not fit is read again for every step, mostly from the cache. Rows of which not every
one begins at a whole vector are walked by the vectors of the whole array; the first and the last of
a row are then looked at element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from meta.dialect.tvm.schedule_cuda.emit import (
    across_threads,
    aligned,
    copy,
    divided,
    element,
    loop,
    per_lane,
    sequence,
    store,
    substituted,
    widest,
)
from meta.dialect.tvm.schedule_cuda.row_plan import (
    ELEMENT,
    LEAST_SHIFTED,
    MAX_VECTOR,
    REDUCED,
    Member,
    RowLayout,
    RowPlan,
    Walk,
    members_of,
)
from meta.dialect.tvm.schedule_cuda.walk import (
    KernelBlock,
    KernelResult,
    compact,
    read_outside,
    reads,
)

FEW, LONG = 128, 1 << 16
"""Fewer rows of more elements are not for this kernel."""
CHUNK = 4
"""Vectors that a thread has under way of a row that it cannot hold."""
Sweep = Callable[[Any, Any], list[Any]]


class RowKernel(RowPlan):
    """One kernel of stages with the same rows; ``outside`` are buffers that others read.

    start, first: where the row begins, and its first vector counted in the whole array, if it is
    shifted. inside: whether the vectors that are written about are in the row for sure.
    """

    def __init__(self, layout: RowLayout, members: Sequence[Member], outside: set[Any]) -> None:
        super().__init__(layout, members, outside)
        self.start, self.first = tirx.Var("start", self.k.dtype), tirx.Var("first", self.k.dtype)
        self.inside = False

    def emit(self) -> Any:
        """Return the statement of the kernel."""
        k, count = self.k, self.layout.count
        blocks = divided(count, self.together)
        row = k.wide(k.block) * k.number(self.together) + k.wide(k.row)
        self.exists: Any = None
        if count % self.together:
            self.exists = row < k.number(count)
            row = tirx.min(row, k.number(count - 1))
        self.row = row
        self.row_values = self.layout.row_values(row, k.number(0))
        begin = row * k.number(self.layout.length)
        bound = [
            tirx.Bind(self.start, begin),
            tirx.Bind(self.first, tirx.floordiv(self.start, k.number(self.vector))),
        ]
        self.slots = divided(self.vectors, self.threads) if self.holds else self.resident + CHUNK
        body: list[Any] = bound if self.shifted else []
        self.registers: dict[Any, Any] = {}
        for walk in self.of_row:
            registers = k.registers(str(walk.buffer.dtype), 1)
            self.registers[walk] = registers
            value = element(walk.buffer, self._start(walk))
            body.append(self._if_row(store(registers, value, 0)))
        for walk in self.along:
            self.registers[walk] = k.registers(str(walk.buffer.dtype), self.slots * self.vector)
        for walk in self.weights:
            self.registers[walk] = k.registers(str(walk.buffer.dtype), self.vector)
        for member in self.kept if self.holds else []:
            buffer = member.part.stage.buffer
            self.registers[buffer] = k.registers(str(buffer.dtype), self.slots * self.vector)
        if self.holds and self.along:  # what is read under a condition is read where it is used
            body += self._held(self._read)
        elif self.along:
            body += self._in_registers(self.resident, self._read)
        for member in self.members:
            if member in self.online.values() and not self.holds:
                pass  # with the sum
            elif member in self.online and not self.holds:
                body += self._online(self.online[member], member)
            elif member.role == REDUCED:
                body += self._reduced(member)
            elif member.role == ELEMENT:
                body += self._elements(member)
            else:
                body += self._scalar(member)
        return k.launch(body, blocks, self.threads, self.together)

    def _start(self, walk: Walk) -> Any:
        """Return the offset of the first element that is read for the row."""
        k = self.k
        steps = compact(self.layout.rows)
        if all(s == walk.rows[-1] * c for s, c in zip(walk.rows, steps, strict=True)):
            factor = walk.rows[-1] if walk.rows else 0
            return self.row * k.number(factor) + k.number(walk.start)
        return k.offset(walk.start, self.row_values, walk.rows)

    def _width(self, walk: Walk) -> int:
        width = min(self.vector, widest(walk.buffer))
        return width if self.shifted else aligned(width, (walk.start, *walk.rows))

    def _read(self, slot: Any, place: Any) -> list[Any]:
        """Return the reads of the vector at ``place`` of the row into a slot of the registers.

        Threads without a row read none: it could be overwritten by the threads that have it. The
        last vector of shifted rows may end behind the array.
        """
        ends = self.layout.count * self.layout.length % self.vector
        if self.shifted and ends and not self.inside:
            return [self._whole_or_each(slot, place)]
        made = []
        for walk in self.along:
            at = (self.start if self.shifted else self._start(walk)) + place
            to, width = slot * self.vector, self._width(walk)
            made += copy(self.vector, width, self.registers[walk], to, walk.buffer, at)
        return made if self.exists is None else [self._if_row(sequence(made))]

    def _whole_or_each(self, slot: Any, place: Any) -> Any:
        k, at = self.k, self.start + place
        end = k.number(self.layout.count * self.layout.length)

        def copies(count: int, width: int, first: Any) -> Any:
            made = []
            for walk in self.along:
                to, source = slot * self.vector + first, at + k.wide(first)
                made += copy(count, width, self.registers[walk], to, walk.buffer, source)
            return sequence(made)

        def lane(v: Any) -> Any:
            return tirx.IfThenElse(at + k.wide(v) < end, copies(1, 1, v), None)

        zero = tirx.const(0, "int32")
        width = min(self.vector, min(widest(walk.buffer) for walk in self.along))
        whole = copies(self.vector, width, zero)
        return tirx.IfThenElse(
            at + k.number(self.vector) <= end, whole, per_lane(self.vector, lane)
        )

    def _sweep(self, members: Sequence[Member], body: Sweep) -> list[Any]:
        """Return ``body(slot, place)`` for every vector of the row, with what it reads at hand."""
        weights = [w for w in self.weights if any(self._uses(m, w) for m in members)]

        def step(slot: Any, place: Any) -> list[Any]:
            loads = []
            for walk in weights:
                to, at = self.k.number(0), self.k.number(walk.start) + place
                width = self._width(walk)
                loads += copy(self.vector, width, self.registers[walk], to, walk.buffer, at)
            return [*loads, *body(slot, place)]

        return self._held(step) if self.holds else self._streamed(step)

    def _place(self, vector: Any) -> Any:
        """Return the place in the row of this thread's vector of a number."""
        k = self.k
        number = vector * k.number(self.threads) + k.wide(k.thread)
        if self.shifted:
            return (self.first + number) * k.number(self.vector) - self.start
        return number * k.number(self.vector)

    def _parts(self) -> tuple[int, int, int]:
        """Return the ends of the vectors that may begin before the row, those that are in it for
        sure, and those that every thread has.
        """
        whole = self.whole
        if not self.shifted:
            return 0, whole, whole
        edge = min(1, whole)
        inner = min(whole, self.layout.length // (self.vector * self.threads))
        return edge, max(edge, inner), whole

    def _held(self, step: Sweep) -> list[Any]:
        whole = self.whole
        made = self._in_registers(whole, step)
        return [*made, *self._last(whole, step, tirx.const(whole, "int32"))]

    def _in_registers(self, count: int, step: Sweep) -> list[Any]:
        """Return the step of the first vectors, each of which has registers of its own."""
        edge, inner, _ = self._parts()
        made = self._slots(0, min(edge, count), step)
        self.inside = True
        made += self._slots(edge, min(inner, count), step)
        self.inside = False
        return made + self._slots(max(edge, inner), count, step)

    def _slots(self, first: int, end: int, step: Sweep) -> list[Any]:
        def one(i: Any) -> Any:
            return sequence(step(i + first, self._place(self.k.wide(i + first))))

        return [per_lane(end - first, one)] if end > first else []

    def _last(self, whole: int, step: Sweep, slot: Any) -> list[Any]:
        """Return the step of the last vectors, which are fewer than the threads."""
        rest = self.vectors - whole * self.threads
        if not rest:
            return []
        place = self._place(self.k.number(whole))
        there = self.k.thread < rest
        if self.shifted:
            there = place < self.k.number(self.layout.length)
        return [tirx.IfThenElse(there, sequence(step(slot, place)), None)]

    def _lanes(self, place: Any, lane: Callable[[Any], Any], whole: list[Any]) -> Any:
        """Return ``whole``, and of a vector that is not all in the row what it is of ``lane``."""
        if not self.shifted or self.inside:
            return sequence(whole)
        end = self.k.number(self.layout.length)

        def inside(v: Any) -> Any:
            at = place + self.k.wide(v)
            return tirx.IfThenElse(tirx.all(at >= 0, at < end), lane(v), None)

        within = tirx.all(place >= 0, place + self.k.number(self.vector) <= end)
        return tirx.IfThenElse(within, sequence(whole), per_lane(self.vector, inside))

    def _streamed(self, step: Sweep) -> list[Any]:
        edge, inner, whole = self._parts()
        slots = self.resident
        begin = max(edge, slots)
        rounds = max(0, inner - begin) // CHUNK

        def some(first: Any, count: int) -> list[Any]:
            def place(i: Any) -> Any:
                return self._place(first + self.k.wide(i))

            return [
                per_lane(count, lambda i: sequence(self._read(i + slots, place(i)))),
                per_lane(count, lambda i: sequence(step(i + slots, place(i)))),
            ]

        def one(slot: Any, place: Any) -> list[Any]:
            return [*self._read(slot, place), *step(slot, place)]

        made = self._in_registers(slots, step)
        for number in range(slots, edge):
            made += some(self.k.number(number), 1)
        self.inside = True
        if rounds:

            def round_of(i: Any) -> Any:
                first = self.k.wide(i) * self.k.number(CHUNK) + self.k.number(begin)
                return sequence(some(first, CHUNK))

            made.append(loop("round", rounds, round_of))
        rest = begin + rounds * CHUNK
        if inner > rest:
            made += some(self.k.number(rest), inner - rest)
        self.inside = False
        for number in range(max(inner, begin), whole):
            made += some(self.k.number(number), 1)
        return [*made, *self._last(whole, one, tirx.const(slots, "int32"))]

    # The stages -----------------------------------------------------------------------------

    def _uses(self, member: Member, walk: Walk) -> bool:
        for node in reads(member.part.value)[0]:
            found = self.by_buffer.get(node.source)
            if found is None:
                if self.layout.row_walk(member, node) == walk:
                    return True
            elif found.role == ELEMENT and not self.holds and self._uses(found, walk):
                return True
        return False

    def _value(self, member: Member, slot: Any, place: Any, v: Any) -> Any:
        """Return a stage's element, ``v`` after the place of a vector."""

        def load(node: Any) -> Any:
            found = self.by_buffer.get(node.source)
            if found is not None:
                if found.role != ELEMENT:
                    return element(self.registers[node.source], 0)
                if self.holds:
                    return element(self.registers[node.source], slot * self.vector + v)
                return self._value(found, slot, place, v)
            walk = self.layout.row_walk(member, node)
            registers = self.registers.get(walk)
            if walk is None or registers is None:
                return None
            if walk in self.along:
                return element(registers, slot * self.vector + v)
            return element(registers, v if any(walk.cols) else 0)

        values = self.layout.axis_values(member, self.row_values, place + self.k.wide(v), self.k)
        return substituted(member.part.value, values, load)

    def _reduced(self, member: Member) -> list[Any]:
        k, stage = self.k, member.part.stage
        total = k.registers(str(stage.buffer.dtype), 1)
        self.registers[stage.buffer] = total

        def add(slot: Any, place: Any) -> list[Any]:
            def lane(v: Any) -> Any:
                return store(total, self._value(member, slot, place, v), 0)

            return [self._lanes(place, lane, [per_lane(self.vector, lane)])]

        body = [store(total, member.part.init, 0), *self._sweep([member], add)]
        body += across_threads(k, total, member.part.combine, self.threads, self.together)
        return body + self._written(member)

    def _online(self, largest: Member, added: Member) -> list[Any]:
        """Return one sweep for a maximum and the sum of exponentials of what is below it.

        The sum is that by the largest element so far, and is scaled when there is a larger one
        (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018).
        """
        k, buffers = self.k, [m.part.stage.buffer for m in (largest, added)]
        top, total, found = (k.registers(str(buffers[0].dtype), 1) for _ in range(3))
        self.registers[buffers[1]] = total

        def scaled(larger: Any) -> list[Any]:
            by = tirx.exp(element(top, 0) - larger)
            return [store(total, element(total, 0) * by, 0), store(top, larger, 0)]

        def add(slot: Any, place: Any) -> list[Any]:
            def look(v: Any) -> Any:
                self.registers[buffers[0]] = found
                return store(found, self._value(largest, slot, place, v), 0)

            def lane(v: Any) -> Any:
                self.registers[buffers[0]] = top
                return store(total, self._value(added, slot, place, v), 0)

            larger = element(found, 0)
            return [
                store(found, element(top, 0), 0),
                self._lanes(place, look, [per_lane(self.vector, look)]),
                tirx.IfThenElse(larger > element(top, 0), sequence(scaled(larger)), None),
                self._lanes(place, lane, [per_lane(self.vector, lane)]),
            ]

        body = [store(top, largest.part.init, 0), store(total, added.part.init, 0)]
        body += self._sweep([largest, added], add)
        self.registers[buffers[0]] = found
        body.append(store(found, element(top, 0), 0))
        for one, member in ((found, largest), (total, added)):
            body += across_threads(k, one, member.part.combine, self.threads, self.together)
            if member is largest:
                body.append(sequence(scaled(element(found, 0))))
        return [*body, *self._written(largest), *self._written(added)]

    def _scalar(self, member: Member) -> list[Any]:
        buffer = member.part.stage.buffer
        registers = self.k.registers(str(buffer.dtype), 1)
        zero = self.k.number(0)
        value = self._value(member, zero, zero, tirx.const(0, "int32"))
        self.registers[buffer] = registers
        return [store(registers, value, 0), *self._written(member)]

    def _written(self, member: Member) -> list[Any]:
        """Return what stores a row's value, if others read it."""
        if not self._is_written(member):
            return []
        buffer = member.part.stage.buffer
        once = self.k.thread == 0
        if self.exists is not None:
            once = tirx.all(once, self.exists)
        write = store(buffer, element(self.registers[buffer], 0), self.row)
        return [tirx.IfThenElse(once, write, None)]

    def _elements(self, member: Member) -> list[Any]:
        buffer = member.part.stage.buffer
        kept, written = self.holds and member in self.kept, self._is_written(member)
        if not kept and not written:
            return []  # computed where it is read
        held = self.registers[buffer] if kept else None
        if held is None:
            held = self.k.registers(str(buffer.dtype), self.vector)
        start = self.row * self.k.number(self.layout.length)
        start = self.start if self.shifted else start

        def step(slot: Any, place: Any) -> list[Any]:
            first = slot * self.vector if kept else self.k.number(0)

            def lane(v: Any) -> Any:
                return store(held, self._value(member, slot, place, v), first + v)

            def last(v: Any) -> Any:
                write = store(buffer, element(held, first + v), start + place + self.k.wide(v))
                return sequence([lane(v), self._if_row(write)] if written else [lane(v)])

            whole = [per_lane(self.vector, lane)]
            if written:
                width = min(self.vector, widest(buffer))
                write = copy(self.vector, width, buffer, start + place, held, first)
                whole.append(self._if_row(sequence(write)))
            return [self._lanes(place, last, whole)]

        return self._sweep([member], step)

    def _if_row(self, statement: Any) -> Any:
        return statement if self.exists is None else tirx.IfThenElse(self.exists, statement, None)


def kernel(parts: Sequence[KernelBlock], inner: set[Any]) -> KernelResult | None:
    """Return the stages that one kernel of rows computes, and the kernel; None if there is none.

    Of few very long rows there is none: a thread block each would leave the GPU idle.
    """
    found = members_of(parts)
    if found is None:
        return None
    layout, members = found
    if layout.count < FEW and layout.length > LONG:
        return None
    taken = [member.part for member in members]
    outside = read_outside(taken, parts, inner)
    return taken, [RowKernel(layout, members, outside).emit()], []


def are_apart(parts: Sequence[KernelBlock]) -> bool:
    """Whether a kernel of these parts reads nothing of a row but where it computes that row: for
    sure where no vector has elements of two rows.
    """
    length = next(RowLayout.of(part).length for part in parts if part.stage.reduce)
    return length % MAX_VECTOR == 0 or length < LEAST_SHIFTED
