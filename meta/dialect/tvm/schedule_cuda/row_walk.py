"""How the threads of a kernel of rows go over the vectors of a row; see `rows`.

Of a row that does not begin at a whole vector, the first and the last vector are looked at element
by element; of those between, the threads know that they are in the row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from meta.dialect.tvm.schedule_cuda.emit import each, loop, sequence
from meta.dialect.tvm.schedule_cuda.row_plan import RowPlan
from meta.dialect.tvm.schedule_cuda.row_stages import Member, RowLayout

CHUNK = 4
"""Vectors that a thread has under way of a row that it cannot hold."""
Sweep = Callable[[Any, Any], list[Any]]


class RowWalk(RowPlan):
    """A plan, and the loops over the vectors of a row that follow from it.

    start, first: where the row begins, and its first vector counted in the whole array, if it is
    shifted. inside: whether the vectors that are written about are in the row for sure.
    """

    def __init__(self, layout: RowLayout, members: Sequence[Member], outside: set[Any]) -> None:
        super().__init__(layout, members, outside)
        self.start, self.first = tirx.Var("start", self.k.dtype), tirx.Var("first", self.k.dtype)
        self.inside = False

    def _read(self, slot: Any, place: Any) -> list[Any]:
        raise NotImplementedError

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
        return (
            edge,
            max(edge, min(whole, self.layout.extent // (self.vector * self.threads))),
            whole,
        )

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

        return [each(end - first, one)] if end > first else []

    def _last(self, whole: int, step: Sweep, slot: Any) -> list[Any]:
        """Return the step of the last vectors, which are fewer than the threads."""
        rest = self.vectors - whole * self.threads
        if not rest:
            return []
        place = self._place(self.k.number(whole))
        there = self.k.thread < rest
        if self.shifted:
            there = place < self.k.number(self.layout.extent)
        return [tirx.IfThenElse(there, sequence(step(slot, place)), None)]

    def _lanes(self, place: Any, lane: Callable[[Any], Any], whole: list[Any]) -> Any:
        """Return ``whole``, and of a vector that is not all in the row what it is of ``lane``."""
        if not self.shifted or self.inside:
            return sequence(whole)
        end = self.k.number(self.layout.extent)

        def inside(v: Any) -> Any:
            at = place + self.k.wide(v)
            return tirx.IfThenElse(tirx.all(at >= 0, at < end), lane(v), None)

        within = tirx.all(place >= 0, place + self.k.number(self.vector) <= end)
        return tirx.IfThenElse(within, sequence(whole), each(self.vector, inside))

    def _streamed(self, step: Sweep) -> list[Any]:
        edge, inner, whole = self._parts()
        slots = self.resident
        begin = max(edge, slots)
        rounds = max(0, inner - begin) // CHUNK

        def some(first: Any, count: int) -> list[Any]:
            def place(i: Any) -> Any:
                return self._place(first + self.k.wide(i))

            return [
                each(count, lambda i: sequence(self._read(i + slots, place(i)))),
                each(count, lambda i: sequence(step(i + slots, place(i)))),
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
