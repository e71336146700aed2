"""Kernels of reductions down the columns of an array; see `reductions`.

Kernels of reductions that are not of rows: down the columns of an array, or very long.

Many threads share each result. Where the results lie next to each other in what is read, so do the
threads, and each reduces a column (`columns`); where what is reduced does, a thread block reduces a
slice of it (`Slices`). Several reductions of the same axes are one kernel, with what is computed of
the results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from tvm import tirx

from meta.dialect.core.knobs import ask
from meta.dialect.tvm.schedule_cuda.emit import (
    WARP,
    Kernel,
    across_threads,
    divided,
    element,
    loop,
    per_lane,
    sequence,
    store,
    synchronize,
)
from meta.dialect.tvm.schedule_cuda.partial import THREADS, Partial, cut, groups
from meta.dialect.tvm.schedule_cuda.walk import (
    KernelBlock,
    KernelResult,
    element_values,
    read_outside,
    values_of_axes,
)

SHORT = 32
"""Shorter columns are reduced by one thread."""


class Columns(Partial):
    """The results lie next to each other in what is read: neighbouring threads have neighbours.

    The threads of a block that reduce one column add their totals through shared memory.
    """

    def _axis(self) -> int:
        return len(self.axes.results) - 1

    def kernels(self) -> tuple[list[Any], list[Any]]:
        """Return the kernels and the arrays that they need between them."""
        k, axes = Kernel(self.dtype), self.axes
        inner = math.prod(axes.results[a] for a in self.result_groups[-1])
        vector = self._vector(inner)
        vectors = inner // vector
        short = axes.length < SHORT
        across = min(THREADS if short else WARP, 1 << (vectors - 1).bit_length())
        if not short:
            near = (across // 4, across // 2, across * 2)
            across = ask("across", across, [n for n in near if 1 <= n <= THREADS // vector])
        down = 1 if short else THREADS // across
        along, outer = divided(vectors, across), axes.count // inner
        every = divided(axes.length, down)
        rounds = every if short else divided(every, cut(along * outer, every))
        slices = divided(every, rounds)
        block, piece = k.parted(k.wide(k.block), along)
        outer_value, slice_of = k.parted(block, slices)
        number = piece * k.number(across) + k.wide(k.thread)
        column = tirx.min(number, k.number(vectors - 1)) * k.number(vector)
        results = self._result_values(k, outer_value, column)
        ragged = slices * rounds * down != axes.length

        def at(i: Any) -> tuple[list[Any], Any]:
            step = slice_of * k.number(rounds) + k.wide(i)
            place = step * k.number(down) + k.wide(k.row)
            values = [*results, *self._reduced_values(k, place)]
            return values, place < k.number(axes.length) if ragged else None

        totals = [k.registers(str(p.stage.buffer.dtype), vector) for p in self.reductions]
        body = [
            per_lane(vector, partial(store, t, p.init))
            for p, t in zip(self.reductions, totals, strict=True)
        ]
        body += self._accumulate(k, vector, totals, rounds, at)
        if short:
            exists = number < k.number(vectors)
            begin = outer_value * k.number(inner) + column
            for v in range(vector):
                body += self._finish(k, totals, v, begin + v, exists)
            return [k.launch(body, along * outer, across)], []
        mine = k.row * across + k.thread
        wide = across * vector
        sums = self._added(k, totals, down, wide)
        place = piece * k.number(wide) + k.wide(mine)
        exists = tirx.all(mine < wide, place < k.number(inner))
        result = outer_value * k.number(inner) + tirx.min(place, k.number(inner - 1))
        ends, between = self._ended(k, totals, result, exists, slice_of, slices)
        body += [*sums[0], tirx.IfThenElse(mine < wide, sequence([*sums[1], *ends]), None)]
        kernel = k.launch(body, along * slices * outer, across, down)
        return self._with_combined(kernel, between, slices)

    def _added(
        self, k: Kernel, totals: list[Any], down: int, wide: int
    ) -> tuple[list[Any], list[Any]]:
        """Return what shares the threads' totals, and what adds those of this thread's column."""
        vector = wide * down // THREADS
        first, mine = k.row * wide + k.thread * vector, k.row * (wide // vector) + k.thread
        shared, sums = [], []
        for part, total in zip(self.reductions, totals, strict=True):
            table = k.shared(str(total.dtype), down * wide)

            def share(v: Any, total: Any = total, table: Any = table) -> Any:
                return store(table, element(total, v), first + v)

            shared.append(per_lane(vector, share))
            sums.append(store(total, element(table, mine), 0))

            def add(row: Any, part: Any = part, total: Any = total, table: Any = table) -> Any:
                other = element(table, row * wide + mine)
                return store(total, part.combine(element(total, 0), other), 0)

            sums.append(loop("row", down - 1, add, first=1))
        return [*shared, synchronize()], sums

    def _result_values(self, k: Kernel, outer: Any, column: Any) -> list[Any]:
        """Return the values of the results' axes for an outer index and a place within a line."""
        axes = self.axes
        values, rest = [column], outer
        for group in reversed(self.result_groups[:-1]):
            extent = math.prod(axes.results[a] for a in group)
            rest, value = k.parted(rest, extent)
            values.append(value)
        return values_of_axes(axes.results, self.result_groups, values[::-1], k.number(0))


class Slices(Partial):
    """What is reduced lies next to each other: a thread block has a slice of one reduction."""

    def _axis(self) -> int:
        return len(self.axes.results) + len(self.axes.reduced) - 1

    def kernels(self) -> tuple[list[Any], list[Any]]:
        """Return the kernels and the arrays that they need between them."""
        k, axes = Kernel(self.dtype), self.axes
        inner = math.prod(axes.reduced[a] for a in self.reduced_groups[-1])
        vector = self._vector(inner)
        vectors = axes.length // vector
        every = divided(vectors, THREADS)
        rounds = divided(every, cut(axes.count, every))
        slices = divided(every, rounds)
        result, slice_of = k.parted(k.wide(k.block), slices)
        results = element_values(axes.results, result, k.number(0))
        ragged = slices * rounds * THREADS != vectors

        def at(i: Any) -> tuple[list[Any], Any]:
            step = slice_of * k.number(rounds) + k.wide(i)
            number = step * k.number(THREADS) + k.wide(k.thread)
            values = self._reduced_values(k, number * k.number(vector))
            return [*results, *values], number < k.number(vectors) if ragged else None

        totals = [k.registers(str(p.stage.buffer.dtype), 1) for p in self.reductions]
        body: list[Any] = [
            store(t, p.init, 0) for p, t in zip(self.reductions, totals, strict=True)
        ]
        body += self._accumulate(k, vector, totals, rounds, at)
        for part, total in zip(self.reductions, totals, strict=True):
            body += across_threads(k, total, part.combine, THREADS, 1)
        ends, between = self._ended(k, totals, result, k.thread == 0, slice_of, slices)
        body += ends
        return self._with_combined(k.launch(body, slices * axes.count, THREADS), between, slices)


def kernel(parts: Sequence[KernelBlock], inner: set[Any]) -> KernelResult | None:
    """Return the first reductions that share their axes, stages of their results, and kernels."""
    for axes, reductions, after in groups(parts):
        taken = [*reductions, *after]
        outside = read_outside(taken, parts, inner)
        for way in (Columns, Slices):
            made = way(axes, reductions, after, outside)
            if made.fits:
                return (taken, *made.kernels())
    return None
