"""What the kernels of `reductions` have in common: partial results, and their end."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tvm import tirx

from meta.dialect.core.knobs import ask
from meta.dialect.tvm.schedule_cuda.emit import (
    ACCESS_BYTES,
    WARP,
    Kernel,
    across_threads,
    aligned,
    copy,
    divided,
    element,
    itemsize,
    loop,
    per_lane,
    power_of_two_in,
    sequence,
    store,
    substituted,
    widest,
)
from meta.dialect.tvm.schedule_cuda.walk import (
    Access,
    Axes,
    KernelBlock,
    access,
    all_reads,
    compact,
    computed_by,
    element_values,
    merged_axes,
    reads,
    reads_of_others,
    slides,
    values_at,
    values_of_axes,
)
from meta.dialect.tvm.target import processors

THREADS = 256
MOST_BLOCKS = 8
"""Thread blocks that a multiprocessor runs at a time; a reduction to fewer is cut, but not into
more."""
CHUNK, MOST_BYTES = 4, 64
"""Vectors that a thread has under way, or more if they are short: bytes."""
MAX_VECTOR = 8
FEW = 4096
"""Fewer results than that get a warp each where slices are combined."""
Grouped = tuple[Axes, list[KernelBlock], list[KernelBlock]]
"""Axes, reductions of these, and stages of their results."""


def cut(blocks: int, rounds: int) -> int:
    """Return into how many slices to cut reductions of so many rounds, for so many blocks.

    As many as the GPU runs at a time, or rather fewer if they are then of one length.
    """
    most = max(1, min(MOST_BLOCKS * processors() // blocks, rounds // CHUNK))
    wish = next((n for n in range(most, most // 2, -1) if rounds % n == 0), most)
    near = (1, wish // 4, wish // 2, wish * 2, wish * 4)
    return ask("slices", wish, [n for n in near if 1 <= n <= rounds])


def groups(parts: Sequence[KernelBlock]) -> Iterator[Grouped]:
    """Yield axes, the reductions of these that can be made now, and stages of their results."""
    missing = computed_by(parts)
    for first in parts:
        axes = Axes.of(first)
        if not axes.reduced or first.combine is None or slides(first):
            continue
        made: set[Any] = set()
        reductions: list[KernelBlock] = []
        after: list[KernelBlock] = []
        for part in parts:
            if Axes.of(part) == axes and part.combine is not None:
                if _available(part, set(), missing):
                    reductions.append(part)
                    made.add(part.stage.buffer)
            elif (
                not part.stage.reduce
                and Axes.of(part).results == axes.results
                and _available(part, made, missing)
                and any(node.source in made for node in all_reads(part.value))
            ):
                after.append(part)
                made.add(part.stage.buffer)
        if first in reductions:
            yield axes, reductions, after


def _available(part: KernelBlock, made: set[Any], missing: set[Any]) -> bool:
    """Whether all that a part reads is there: of what is made, the result of its own place."""
    extents = tuple(e for e in part.stage.spatial if e is not None)
    line = compact(extents)
    for node in reads_of_others(part):
        if node.source in made:
            walk = access(node, part.stage.axes)
            if walk is None or walk.start:
                return False
            steps = zip(walk.strides, line, extents, strict=False)
            if not all(s == c or e == 1 for s, c, e in steps):
                return False
        elif node.source in missing:
            return False
    return True


class Partial(ABC):
    """Kernels of some reductions of the same axes, and of stages of their results.

    The reduction may be cut into slices, whose results another kernel combines. What is read is
    walked in vectors along one ``axis``, of the results or of what is reduced.
    """

    def __init__(
        self, axes: Axes, reductions: list[KernelBlock], after: list[KernelBlock], outside: set[Any]
    ) -> None:
        self.axes, self.reductions, self.after, self.outside = axes, reductions, after, outside
        self.own = {part.stage.buffer for part in (*reductions, *after)}
        self.dtype = str(reductions[0].stage.axes[0].ty.dtype)
        found = {
            axes.walk(part, node): None
            for part in reductions
            for node in reads(part.value)[0]
            if node.source not in self.own
        }
        self.walks = [walk for walk in found if walk is not None]
        n = len(axes.results)
        line = Access(None, (*compact(axes.results), *[0] * len(axes.reduced)), 0)
        given = [line, *self.walks]
        self.result_groups = merged_axes(
            axes.results, [Access(a.buffer, a.strides[:n], a.start) for a in given]
        )
        self.reduced_groups = merged_axes(
            axes.reduced, [Access(a.buffer, a.strides[n:], a.start) for a in given]
        )
        self.axis = self._axis()
        self.fits = self.axis >= 0 and self._walked_by(self.axis)

    @abstractmethod
    def _axis(self) -> int:
        """Return the axis that is walked along, negative if there is none."""

    @abstractmethod
    def kernels(self) -> tuple[list[Any], list[Any]]:
        """Return the kernels and the arrays that they need between them."""

    def _walked_by(self, axis: int) -> bool:
        """Whether an array of all axes is walked along an axis, and nothing across it."""
        return all(walk.strides[axis] in (0, 1) for walk in self.walks) and any(
            walk.strides[axis] == 1 and all(walk.strides) for walk in self.walks
        )

    def _vector(self, extent: int) -> int:
        sizes = [itemsize(w.buffer) for w in self.walks if w.strides[self.axis] == 1]
        wish = power_of_two_in(extent, min(MAX_VECTOR, ACCESS_BYTES // min(sizes)))
        return ask("vector", wish, [n for n in (1, 2, 4) if n < wish])

    def _width(self, walk: Access, vector: int) -> int:
        across = (s for position, s in enumerate(walk.strides) if position != self.axis)
        return aligned(min(vector, widest(walk.buffer)), (*across, walk.start))

    def _accumulate(
        self,
        k: Kernel,
        vector: int,
        totals: Sequence[Any],
        rounds: int,
        at: Callable[[Any], tuple[list[Any], Any]],
    ) -> list[Any]:
        """Return the loop that adds ``rounds`` vectors to the totals.

        ``at`` gives the values of all axes for a round, and whether there is one, or None. A total
        is one number, or a vector of them.
        """
        axis = self.axis
        sizes = [vector * itemsize(w.buffer) for w in self.walks if w.strides[axis] == 1]
        chunk = min(4 * CHUNK, max(CHUNK, MOST_BYTES // max(sizes)), rounds)
        near = (chunk // 2, chunk * 2)
        chunk = ask("ahead", chunk, [n for n in near if 1 <= n <= min(4 * CHUNK, rounds)])
        held = {
            walk: k.registers(
                str(walk.buffer.dtype), chunk * vector if walk.strides[axis] else chunk
            )
            for walk in self.walks
            if walk.strides[axis] in (0, 1)
        }
        one = axis >= len(self.axes.results)

        def read(slot: Any, number: Any) -> Any:
            values, exists = at(number)
            made = []
            for walk, registers in held.items():
                count = vector if walk.strides[axis] else 1
                offset = k.offset(walk.start, values, walk.strides)
                width = min(count, self._width(walk, vector))
                made += copy(count, width, registers, slot * count, walk.buffer, offset)
            whole = sequence(made)
            return whole if exists is None else tirx.IfThenElse(exists, whole, None)

        def add(slot: Any, number: Any) -> Any:
            values, exists = at(number)

            def lane(v: Any) -> Any:
                here = list(values)
                here[axis] = here[axis] + k.wide(v)
                to = 0 if one else v
                made = []
                for part, total in zip(self.reductions, totals, strict=True):

                    def load(node: Any, part: Any = part, total: Any = total) -> Any:
                        if node.source.same_as(part.stage.buffer):
                            return element(total, to)
                        walk = self.axes.walk(part, node)
                        if walk is None or walk not in held:
                            return None
                        at = slot * vector + v if walk.strides[axis] else slot
                        return element(held[walk], at)

                    of_axes = values_at(part, here, k.number(0))
                    made.append(store(total, substituted(part.value, of_axes, load), to))
                return sequence(made)

            whole = per_lane(vector, lane)
            return whole if exists is None else tirx.IfThenElse(exists, whole, None)

        def some(first: Any, count: int) -> Any:
            return sequence(
                [
                    per_lane(count, lambda i: read(i, first + i)),
                    per_lane(count, lambda i: add(i, first + i)),
                ]
            )

        made = []
        if rounds >= chunk:
            made.append(loop("round", rounds // chunk, lambda i: some(i * chunk, chunk)))
        if rounds % chunk:
            made.append(some(tirx.const(rounds - rounds % chunk, "int32"), rounds % chunk))
        return made

    def _finish(
        self, k: Kernel, totals: Sequence[Any], slot: Any, result: Any, exists: Any
    ) -> list[Any]:
        """Return what computes all stages of a result, and stores those that others read."""
        values = element_values(self.axes.results, result, k.number(0))
        found = {
            part.stage.buffer: element(total, slot)
            for part, total in zip(self.reductions, totals, strict=True)
        }
        made = []
        for part in self.after:
            registers = k.registers(str(part.stage.buffer.dtype), 1)
            at = values_at(part, values, k.number(0))
            value = substituted(part.value, at, lambda node: found.get(node.source))
            made.append(store(registers, value, 0))
            found[part.stage.buffer] = element(registers, 0)
        made += [
            store(buffer, value, result)
            for buffer, value in found.items()
            if buffer in self.outside
        ]
        return [tirx.IfThenElse(exists, sequence(made), None)]

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

            def add(i: Any, part: Any = part, partial: Any = partial, total: Any = total) -> Any:
                number = i * lanes + k.thread
                at = k.wide(number) * k.number(count) + safe
                whole = store(total, part.combine(element(total, 0), element(partial, at)), 0)
                return tirx.IfThenElse(number < slices, whole, None) if slices % lanes else whole

            made += [store(total, part.init, 0), loop("slice", rounds, add)]
            made += across_threads(k, total, part.combine, lanes, together)
        exists = tirx.all(k.thread == 0, result < k.number(count))
        made += self._finish(k, totals, 0, safe, exists)
        return k.launch(made, divided(count, together), lanes, together)

    def _with_combined(
        self, kernel: Any, between: list[Any], slices: int
    ) -> tuple[list[Any], list[Any]]:
        """Return the kernels, the one that combines slices among them, and the arrays between."""
        return [kernel, *([self._combined(between, slices)] if between else [])], between

    def _ended(
        self, k: Kernel, totals: Sequence[Any], result: Any, exists: Any, number: Any, slices: int
    ) -> tuple[list[Any], list[Any]]:
        """Return what becomes of a thread's totals, and arrays of slices' results, if any."""
        if slices == 1:
            return self._finish(k, totals, 0, result, exists), []
        between = [
            tirx.decl_buffer((slices, self.axes.count), str(t.dtype), f"{p.stage.buffer.name}_part")
            for p, t in zip(self.reductions, totals, strict=True)
        ]
        place = number * k.number(self.axes.count) + result
        ends = [store(b, element(t, 0), place) for b, t in zip(between, totals, strict=True)]
        return [tirx.IfThenElse(exists, sequence(ends), None)], between

    def _reduced_values(self, k: Kernel, place: Any) -> list[Any]:
        axes = self.axes
        extents = [math.prod(axes.reduced[a] for a in group) for group in self.reduced_groups]
        values = k.unflat(place, extents)
        return values_of_axes(axes.reduced, self.reduced_groups, values, k.number(0))
