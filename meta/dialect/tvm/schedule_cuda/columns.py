"""Kernels of reductions down the columns of an array; see `reductions`."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from tvm import tirx

from meta.dialect.core.knobs import ask
from meta.dialect.tvm.schedule_cuda.emit import (
    WARP,
    Kernel,
    divided,
    each,
    element,
    loop,
    sequence,
    store,
    synchronize,
)
from meta.dialect.tvm.schedule_cuda.partial import THREADS, Partial, cut
from meta.dialect.tvm.schedule_cuda.walk import values_of_axes

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
            each(vector, partial(store, t, p.init))
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

            shared.append(each(vector, share))
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
