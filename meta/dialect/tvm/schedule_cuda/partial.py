"""Kernels of reductions that are not of rows: down the columns of an array, or very long.

Many threads share each result. Where the results lie next to each other in what is read, so do the
threads, and each reduces a column; where what is reduced does, a thread block reduces a slice of
it. Of few results the reduction is cut into slices, whose results another kernel combines. Several
reductions of the same axes are one kernel, with what is computed of the results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from meta.dialect.tvm.schedule_cuda.emit import (
    ACCESS_BYTES,
    WARP,
    Kernel,
    across_threads,
    copy,
    divided,
    each,
    element,
    itemsize,
    power_of_two_in,
    sequence,
    store,
    substituted,
    synchronize,
    widest,
)
from meta.dialect.tvm.schedule_cuda.walk import (
    Access,
    Made,
    Part,
    access,
    compact,
    merged_axes,
    read_outside,
    reads,
    values_of_axes,
)

THREADS = 256
WISHED_BLOCKS = 1056
"""Thread blocks that keep a large GPU busy; a reduction to fewer is cut."""
CHUNK = 4
"""Vectors that a thread has under way."""
MAX_VECTOR = 8
FEW = 4096
"""Fewer results than that get a warp each where slices are combined."""


@dataclass(frozen=True)
class Axes:
    """The extents of the axes of the results and of the reduced axes; none is 1."""

    results: tuple[int, ...]
    reduced: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many results there are."""
        return math.prod(self.results)

    @property
    def length(self) -> int:
        """How many elements make a result."""
        return math.prod(self.reduced)

    def walk(self, part: Part, node: Any) -> Access | None:
        """Return how a read walks along these axes; None if it is by other values."""
        found = access(node, part.stage.axes)
        if found is None:
            return None
        extents = (*part.stage.spatial, *part.stage.reduce)
        strides = tuple(s for s, e in zip(found.strides, extents, strict=True) if e != 1)
        missing = len(self.results) + len(self.reduced) - len(strides)
        return Access(found.buffer, (*strides, *[0] * missing), found.start)


class Partial:
    """Kernels of some reductions of the same axes, and of stages of their results."""

    def __init__(
        self, axes: Axes, reductions: Sequence[Part], after: Sequence[Part], outside: set[Any]
    ) -> None:
        self.axes, self.reductions, self.after, self.outside = axes, reductions, after, outside
        self.own = {part.stage.buffer for part in (*reductions, *after)}
        self.dtype = str(reductions[0].stage.axes[0].ty.dtype)
        found: dict[Access, None] = {}
        for part in reductions:
            for node in reads(part.value)[0]:
                walk = None if node.source in self.own else axes.walk(part, node)
                if walk is not None:
                    found[walk] = None
        self.walks = list(found)
        n = len(axes.results)
        line = Access(None, (*compact(axes.results), *[0] * len(axes.reduced)), 0)
        given = [line, *self.walks]
        self.result_groups = merged_axes(
            axes.results, [Access(a.buffer, a.strides[:n], a.start) for a in given]
        )
        self.reduced_groups = merged_axes(
            axes.reduced, [Access(a.buffer, a.strides[n:], a.start) for a in given]
        )
        self.columns = bool(axes.results) and self._walked_by(n - 1)
        self.fits = self.columns or self._walked_by(len(axes.results) + len(axes.reduced) - 1)

    def _walked_by(self, axis: int) -> bool:
        """Whether an array of all axes is walked along an axis, and nothing across it."""
        return all(walk.strides[axis] in (0, 1) for walk in self.walks) and any(
            walk.strides[axis] == 1 and all(walk.strides) for walk in self.walks
        )

    def kernels(self) -> tuple[list[Any], list[Any]]:
        """Return the kernels and the arrays that they need between them."""
        return self._of_columns() if self.columns else self._of_slices()

    # What both have in common ----------------------------------------------------------------

    def _vector(self, axis: int, extent: int) -> int:
        sizes = [itemsize(w.buffer) for w in self.walks if w.strides[axis] == 1]
        return power_of_two_in(extent, min(MAX_VECTOR, ACCESS_BYTES // min(sizes)))

    def _width(self, walk: Access, axis: int, vector: int) -> int:
        width = min(vector, widest(walk.buffer))
        for position, stride in enumerate(walk.strides):
            if position != axis:
                width = power_of_two_in(abs(stride), width)
        return power_of_two_in(abs(walk.start), width)

    def _offset(self, k: Kernel, walk: Access, values: Sequence[Any]) -> Any:
        offset = k.number(walk.start)
        for value, stride in zip(values, walk.strides, strict=True):
            if stride:
                offset = offset + value * k.number(stride)
        return offset

    def _accumulate(
        self,
        k: Kernel,
        axis: int,
        vector: int,
        totals: Sequence[Any],
        rounds: int,
        at: Callable[[Any], tuple[list[Any], Any]],
    ) -> list[Any]:
        """Return the loop that adds ``rounds`` vectors along ``axis`` to the totals.

        ``at`` gives the values of all axes for a round, and whether there is one, or None.
        """
        held = {
            walk: k.registers(
                str(walk.buffer.dtype), CHUNK * vector if walk.strides[axis] else CHUNK
            )
            for walk in self.walks
            if walk.strides[axis] in (0, 1)
        }
        lanes = len(self._extents()) - 1 == axis and not self.columns

        def read(slot: Any, number: Any) -> Any:
            values, exists = at(number)
            made = []
            for walk, registers in held.items():
                count = vector if walk.strides[axis] else 1
                offset = self._offset(k, walk, values)
                width = min(count, self._width(walk, axis, vector))
                made += copy(count, width, registers, slot * count, walk.buffer, offset)
            whole = sequence(made)
            return whole if exists is None else tirx.IfThenElse(exists, whole, None)

        def add(slot: Any, number: Any) -> Any:
            values, exists = at(number)

            def lane(v: Any) -> Any:
                here = list(values)
                here[axis] = here[axis] + k.wide(v)
                made = []
                for part, total in zip(self.reductions, totals, strict=True):
                    to = 0 if lanes else v
                    value = self._value(k, part, here, held, axis, vector, slot, v, total, to)
                    made.append(store(total, value, to))
                return sequence(made)

            whole = each(vector, lane)
            return whole if exists is None else tirx.IfThenElse(exists, whole, None)

        def some(first: Any, count: int) -> Any:
            return sequence(
                [
                    each(count, lambda i: read(i, first + i)),
                    each(count, lambda i: add(i, first + i)),
                ]
            )

        made = []
        if rounds >= CHUNK:
            i = tirx.Var("round", "int32")
            zero, extent = tirx.const(0, "int32"), tirx.const(rounds // CHUNK, "int32")
            made.append(tirx.For(i, zero, extent, tirx.ForKind.SERIAL, some(i * CHUNK, CHUNK)))
        if rounds % CHUNK:
            made.append(some(tirx.const(rounds - rounds % CHUNK, "int32"), rounds % CHUNK))
        return made

    def _extents(self) -> tuple[int, ...]:
        return (*self.axes.results, *self.axes.reduced)

    def _value(
        self,
        k: Kernel,
        part: Part,
        values: Sequence[Any],
        held: dict[Access, Any],
        axis: int,
        vector: int,
        slot: Any,
        v: Any,
        total: Any,
        to: Any,
    ) -> Any:
        def load(node: Any) -> Any:
            if node.source.same_as(part.stage.buffer):
                return element(total, to)
            walk = self.axes.walk(part, node)
            if walk is None or walk not in held:
                return None
            at = slot * vector + v if walk.strides[axis] else slot
            return element(held[walk], at)

        return substituted(part.value, self._axes_of(k, part, values), load)

    def _axes_of(self, k: Kernel, part: Part, values: Sequence[Any]) -> dict[Any, Any]:
        following = iter(values)
        extents = (*part.stage.spatial, *part.stage.reduce)
        return {
            a: k.number(0) if e == 1 else next(following)
            for a, e in zip(part.stage.axes, extents, strict=True)
        }

    def _finish(
        self, k: Kernel, totals: Sequence[Any], slot: Any, result: Any, exists: Any
    ) -> list[Any]:
        """Return what computes all stages of a result, and stores those that others read."""
        groups = [list(range(len(self.axes.results)))] if self.axes.results else []
        values = values_of_axes(self.axes.results, groups, [result] if groups else [], k.number(0))
        found = {
            part.stage.buffer: element(total, slot)
            for part, total in zip(self.reductions, totals, strict=True)
        }
        made = []
        for part in self.after:
            registers = k.registers(str(part.stage.buffer.dtype), 1)
            value = substituted(
                part.value, self._axes_of(k, part, values), lambda node: found.get(node.source)
            )
            made.append(store(registers, value, 0))
            found[part.stage.buffer] = element(registers, 0)
        made += [
            store(buffer, value, result)
            for buffer, value in found.items()
            if buffer in self.outside
        ]
        return [tirx.IfThenElse(exists, sequence(made), None)]

    def _between(self, slices: int) -> list[Any]:
        """Return the arrays of the slices' results."""
        return [
            tirx.decl_buffer(
                (slices, self.axes.count), str(p.stage.buffer.dtype), f"{p.stage.buffer.name}_part"
            )
            for p in self.reductions
        ]

    def _combined(self, between: Sequence[Any], slices: int) -> Any:
        """Return the kernel that combines the slices."""
        k, count = Kernel(self.dtype), self.axes.count
        lanes = min(WARP, 1 << (slices - 1).bit_length()) if count < FEW else 1
        together = THREADS // lanes
        result = k.wide(k.block) * k.number(together) + k.wide(k.row)
        safe = tirx.min(result, k.number(count - 1))
        rounds = divided(slices, lanes)
        made, totals = [], []
        for part, partial in zip(self.reductions, between, strict=True):
            total = k.registers(str(partial.dtype), 1)
            totals.append(total)
            combine = part.combine
            assert combine is not None
            made.append(store(total, part.init, 0))
            i = tirx.Var("slice", "int32")
            number = i * lanes + k.thread
            at = k.wide(number) * k.number(count) + safe
            add = store(total, combine(element(total, 0), element(partial, at)), 0)
            if slices % lanes:
                add = tirx.IfThenElse(number < slices, add, None)
            zero, extent = tirx.const(0, "int32"), tirx.const(rounds, "int32")
            made.append(tirx.For(i, zero, extent, tirx.ForKind.SERIAL, add))
            made += across_threads(k, total, combine, lanes, together)
        exists = tirx.all(k.thread == 0, result < k.number(count))
        made += self._finish(k, totals, 0, safe, exists)
        return k.launch(made, divided(count, together), lanes, together)

    # The results lie next to each other --------------------------------------------------------

    def _of_columns(self) -> tuple[list[Any], list[Any]]:
        k, axes = Kernel(self.dtype), self.axes
        axis = len(axes.results) - 1
        inner = math.prod(axes.results[a] for a in self.result_groups[-1])
        vector = self._vector(axis, inner)
        vectors = inner // vector
        across = min(WARP, 1 << (vectors - 1).bit_length())
        down = THREADS // across
        along, outer = divided(vectors, across), axes.count // inner
        cuts = min(divided(WISHED_BLOCKS, along * outer), axes.length // (down * CHUNK))
        rounds = divided(divided(axes.length, max(1, cuts)), down)
        slices = divided(axes.length, rounds * down)
        block: Any = k.wide(k.block)
        piece = tirx.floormod(block, k.number(along))
        block = tirx.floordiv(block, k.number(along))
        cut, outer_value = (
            tirx.floormod(block, k.number(slices)),
            tirx.floordiv(block, k.number(slices)),
        )
        number = piece * k.number(across) + k.wide(k.thread)
        column = tirx.min(number, k.number(vectors - 1)) * k.number(vector)
        results = self._result_values(k, outer_value, column)
        ragged = slices * rounds * down != axes.length

        def at(i: Any) -> tuple[list[Any], Any]:
            step = cut * k.number(rounds) + k.wide(i)
            place = step * k.number(down) + k.wide(k.row)
            values = [*results, *self._reduced_values(k, place)]
            return values, place < k.number(axes.length) if ragged else None

        totals = [k.registers(str(p.stage.buffer.dtype), vector) for p in self.reductions]
        body = [
            each(vector, lambda v, p=p, t=t: store(t, p.init, v))
            for p, t in zip(self.reductions, totals, strict=True)
        ]
        body += self._accumulate(k, axis, vector, totals, rounds, at)
        wide = across * vector
        tables = [k.shared(str(t.dtype), down * wide) for t in totals]
        first = k.row * wide + k.thread * vector
        for total, table in zip(totals, tables, strict=True):
            body.append(
                each(vector, lambda v, t=total, s=table: store(s, element(t, v), first + v))
            )
        body.append(synchronize())
        mine = k.row * across + k.thread
        place = piece * k.number(wide) + k.wide(mine)
        sums = []
        for part, total, table in zip(self.reductions, totals, tables, strict=True):
            sums.append(store(total, element(table, mine), 0))
            combine = part.combine
            assert combine is not None
            for row in range(1, down):
                value = combine(element(total, 0), element(table, row * wide + mine))
                sums.append(store(total, value, 0))
        exists = tirx.all(mine < wide, place < k.number(inner))
        safe = tirx.min(place, k.number(inner - 1))
        result = outer_value * k.number(inner) + safe
        between: list[Any] = []
        if slices == 1:
            ends = self._finish(k, totals, 0, result, exists)
        else:
            between = self._between(slices)
            ends = [
                store(b, element(t, 0), cut * k.number(axes.count) + result)
                for b, t in zip(between, totals, strict=True)
            ]
            ends = [tirx.IfThenElse(exists, sequence(ends), None)]
        body.append(tirx.IfThenElse(mine < wide, sequence([*sums, *ends]), None))
        made = [k.launch(body, along * slices * outer, across, down)]
        if between:
            made.append(self._combined(between, slices))
        return made, between

    def _result_values(self, k: Kernel, outer: Any, column: Any) -> list[Any]:
        """Return the values of the results' axes for an outer index and a place within a line."""
        axes = self.axes
        values, rest = [column], outer
        for group in reversed(self.result_groups[:-1]):
            extent = math.prod(axes.results[a] for a in group)
            values.append(tirx.floormod(rest, k.number(extent)))
            rest = tirx.floordiv(rest, k.number(extent))
        return values_of_axes(axes.results, self.result_groups, values[::-1], k.number(0))

    def _reduced_values(self, k: Kernel, place: Any) -> list[Any]:
        axes = self.axes
        values, rest = [], place
        for group in reversed(self.reduced_groups[1:]):
            extent = math.prod(axes.reduced[a] for a in group)
            values.append(tirx.floormod(rest, k.number(extent)))
            rest = tirx.floordiv(rest, k.number(extent))
        return values_of_axes(axes.reduced, self.reduced_groups, [rest, *values[::-1]], k.number(0))

    # What is reduced lies next to each other ---------------------------------------------------

    def _of_slices(self) -> tuple[list[Any], list[Any]]:
        k, axes = Kernel(self.dtype), self.axes
        axis = len(axes.results) + len(axes.reduced) - 1
        inner = math.prod(axes.reduced[a] for a in self.reduced_groups[-1])
        vector = self._vector(axis, inner)
        vectors = axes.length // vector
        cuts = min(divided(WISHED_BLOCKS, axes.count), vectors // (THREADS * CHUNK))
        rounds = divided(divided(vectors, max(1, cuts)), THREADS)
        slices = divided(vectors, rounds * THREADS)
        block: Any = k.wide(k.block)
        cut, result = tirx.floormod(block, k.number(slices)), tirx.floordiv(block, k.number(slices))
        groups = [list(range(len(axes.results)))] if axes.results else []
        results = values_of_axes(axes.results, groups, [result] if groups else [], k.number(0))
        ragged = slices * rounds * THREADS != vectors

        def at(i: Any) -> tuple[list[Any], Any]:
            step = cut * k.number(rounds) + k.wide(i)
            number = step * k.number(THREADS) + k.wide(k.thread)
            values = self._reduced_values(k, number * k.number(vector))
            return [*results, *values], number < k.number(vectors) if ragged else None

        totals = [k.registers(str(p.stage.buffer.dtype), 1) for p in self.reductions]
        body: list[Any] = [
            store(t, p.init, 0) for p, t in zip(self.reductions, totals, strict=True)
        ]
        body += self._accumulate(k, axis, vector, totals, rounds, at)
        for part, total in zip(self.reductions, totals, strict=True):
            combine = part.combine
            assert combine is not None
            body += across_threads(k, total, combine, THREADS, 1)
        once = k.thread == 0
        between: list[Any] = []
        if slices == 1:
            body += self._finish(k, totals, 0, result, once)
        else:
            between = self._between(slices)
            ends = [
                store(b, element(t, 0), cut * k.number(axes.count) + result)
                for b, t in zip(between, totals, strict=True)
            ]
            body.append(tirx.IfThenElse(once, sequence(ends), None))
        made = [k.launch(body, slices * axes.count, THREADS)]
        if between:
            made.append(self._combined(between, slices))
        return made, between


def kernel(parts: Sequence[Part], finished: set[Any], inner: set[Any]) -> Made | None:
    """Return the first reductions that share their axes, stages of their results, and kernels."""
    for first in parts:
        axes = _axes_of(first)
        if axes is None or first.combine is None:
            continue
        made: set[Any] = set()
        reductions: list[Part] = []
        after: list[Part] = []
        for part in parts:
            if _axes_of(part) == axes and part.combine is not None:
                if _available(part, set(), finished, inner):
                    reductions.append(part)
                    made.add(part.stage.buffer)
            elif (
                _results_of(part) == axes.results
                and _available(part, made, finished, inner)
                and any(node.source in made for found in reads(part.value) for node in found)
            ):
                after.append(part)
                made.add(part.stage.buffer)
        if first not in reductions:
            continue
        taken = [*reductions, *after]
        partial = Partial(axes, reductions, after, read_outside(taken, parts, inner))
        if partial.fits:
            return (taken, *partial.kernels())
    return None


def _axes_of(part: Part) -> Axes | None:
    reduced = tuple(e for e in part.stage.reduce if e is not None and e != 1)
    results = tuple(e for e in part.stage.spatial if e is not None and e != 1)
    return Axes(results, reduced) if reduced else None


def _results_of(part: Part) -> tuple[int, ...] | None:
    if part.stage.reduce:
        return None
    return tuple(e for e in part.stage.spatial if e is not None and e != 1)


def _available(part: Part, made: set[Any], finished: set[Any], inner: set[Any]) -> bool:
    """Whether all that a part reads is there: of what is made, the result of its own place."""
    own = part.stage.buffer
    extents = tuple(e for e in part.stage.spatial if e is not None)
    for found in reads(part.value):
        for node in found:
            if node.source.same_as(own):
                continue
            if node.source in made:
                walk = access(node, part.stage.axes)
                line = compact(extents)
                if (
                    walk is None
                    or walk.start
                    or not all(
                        s == c or e == 1
                        for s, c, e in zip(walk.strides, line, extents, strict=False)
                    )
                ):
                    return False
            elif node.source in inner and node.source not in finished:
                return False
    return True
