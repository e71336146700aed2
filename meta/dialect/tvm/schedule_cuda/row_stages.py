"""Which stages have the same rows, so that one kernel computes them; see `rows`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meta.dialect.tvm.schedule_cuda.emit import Kernel
from meta.dialect.tvm.schedule_cuda.walk import (
    Part,
    access,
    all_reads,
    compact,
    computed_by,
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

    part: Part
    role: str


@dataclass(frozen=True)
class RowLayout:
    """The extents of the axes that count rows, and of those within a row; none is 1."""

    rows: tuple[int, ...]
    cols: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many rows there are."""
        return math.prod(self.rows)

    @property
    def extent(self) -> int:
        """How many elements a row has."""
        return math.prod(self.cols)

    def member(self, part: Part) -> Member | None:
        """Return a stage with its role, None if it has other axes."""
        spatial = tuple(e for e in part.stage.spatial if e != 1)
        reduce = tuple(e for e in part.stage.reduce if e != 1)
        if part.stage.reduce:
            fits = spatial == self.rows and reduce == self.cols and part.combine is not None
            return Member(part, REDUCED) if fits else None
        if spatial == (*self.rows, *self.cols):
            return Member(part, ELEMENT)
        return Member(part, SCALAR) if spatial == self.rows else None

    def walk(self, member: Member, node: Any) -> Walk | None:
        """Return how a read of a stage walks; None if it is by other values than the axes."""
        stage = member.part.stage
        found = access(node, stage.axes)
        if found is None:
            return None
        extents = (*stage.spatial, *stage.reduce)
        strides = tuple(s for s, e in zip(found.strides, extents, strict=True) if e != 1)
        n = len(self.rows)
        cols = strides[n:] if member.role != SCALAR else (0,) * len(self.cols)
        return Walk(found.buffer, strides[:n], cols, found.start)

    def along(self, walk: Walk) -> bool:
        """Whether a read is of adjacent elements along the row."""
        return walk.cols == compact(self.cols)

    def same_place(self, reader: Member, node: Any, made: Member) -> bool:
        """Whether a read of another stage is at its own row, and at its own element of it."""
        walk = self.walk(reader, node)
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
        stage, zero = member.part.stage, kernel.number(0)
        within = [] if member.role == SCALAR else values_of_one(self.cols, place, zero)
        values = iter([*rows, *within])
        extents = (*stage.spatial, *stage.reduce)
        return {
            a: zero if e == 1 else next(values) for a, e in zip(stage.axes, extents, strict=True)
        }


def layout_of(part: Part) -> RowLayout | None:
    """Return the rows of a reduction, None if it does not go along what it reads."""
    if part.combine is None:
        return None
    rows = tuple(e for e in part.stage.spatial if e is not None and e != 1)
    cols = tuple(e for e in part.stage.reduce if e is not None and e != 1)
    if not cols:
        return None
    layout = RowLayout(rows, cols)
    member = layout.member(part)
    return layout if member is not None and _goes_along(layout, member, {}) else None


def members_of(parts: Sequence[Part]) -> tuple[RowLayout, list[Member]] | None:
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


def _waiting(layout: RowLayout, parts: Sequence[Part], made: dict[Any, Member]) -> bool:
    """Whether a stage with the layout's axes needs what could be made without the others."""
    by_buffer = {part.stage.buffer: part for part in parts}

    def needs(part: Part) -> set[Any]:
        own = part.stage.buffer
        return {node.source for node in all_reads(part.value)} - {own}

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
    own = member.part.stage.buffer
    for node in all_reads(member.part.value):
        if node.source.same_as(own):
            continue
        producer = made.get(node.source)
        if producer is None:
            if node.source in missing:
                return False
        elif not layout.same_place(member, node, producer):
            return False
    return member.role != REDUCED or _goes_along(layout, member, made)


def _goes_along(layout: RowLayout, member: Member, made: dict[Any, Member]) -> bool:
    """Whether a reduction reads an array with all its rows, or one that is made, none across."""
    own = member.part.stage.buffer
    whole = False
    for node in all_reads(member.part.value):
        if node.source.same_as(own):
            continue
        producer = made.get(node.source)
        if producer is not None:
            whole = whole or producer.role == ELEMENT
            continue
        walk = layout.walk(member, node)
        if walk is None or not any(walk.cols):
            continue
        if not layout.along(walk):
            return False
        whole = whole or all(walk.rows)
    return whole
