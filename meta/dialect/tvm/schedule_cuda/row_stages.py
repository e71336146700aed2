"""Which stages have the same rows, so that one kernel computes them; see `rows`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meta.dialect.tvm.schedule_cuda.emit import Kernel
from meta.dialect.tvm.schedule_cuda.walk import (
    Axes,
    KernelPart,
    compact,
    computed_by,
    reads_of_others,
    values_at,
    values_of_one,
)

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

    part: KernelPart
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

    def member(self, part: KernelPart) -> Member | None:
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
        return values_of_one(self.rows, row, zero)

    def axis_values(
        self, member: Member, rows: Sequence[Any], place: Any, kernel: Kernel
    ) -> dict[Any, Any]:
        """Return the values of a stage's axes at a place of the row."""
        zero = kernel.number(0)
        within = [] if member.role == SCALAR else values_of_one(self.cols, place, zero)
        return values_at(member.part, [*rows, *within], zero)


def layout_of(part: KernelPart) -> RowLayout | None:
    """Return the rows of a reduction, None if it does not go along what it reads."""
    if part.combine is None:
        return None
    layout = RowLayout.of(part)
    if not layout.cols:
        return None
    member = layout.member(part)
    return layout if member is not None and _goes_along(layout, member, {}) else None


def members_of(parts: Sequence[KernelPart]) -> tuple[RowLayout, list[Member]] | None:
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


def _waiting(layout: RowLayout, parts: Sequence[KernelPart], made: dict[Any, Member]) -> bool:
    """Whether a stage with the layout's axes needs what could be made without the others."""
    by_buffer = {part.stage.buffer: part for part in parts}

    def needs(part: KernelPart) -> set[Any]:
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
