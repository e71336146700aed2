"""Kernels of reductions that are not of rows: down the columns of an array, or very long.

Many threads share each result. Where the results lie next to each other in what is read, so do the
threads, and each reduces a column (`columns`); where what is reduced does, a thread block reduces a
slice of it (`Slices`). Several reductions of the same axes are one kernel, with what is computed of
the results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from meta.dialect.tvm.schedule_cuda.columns import Columns
from meta.dialect.tvm.schedule_cuda.emit import Kernel, across_threads, divided, store
from meta.dialect.tvm.schedule_cuda.partial import THREADS, Partial, cut, groups
from meta.dialect.tvm.schedule_cuda.walk import KernelPart, Made, read_outside, values_of_one


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
        results = values_of_one(axes.results, result, k.number(0))
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


def kernel(parts: Sequence[KernelPart], inner: set[Any]) -> Made | None:
    """Return the first reductions that share their axes, stages of their results, and kernels."""
    for axes, reductions, after in groups(parts):
        taken = [*reductions, *after]
        outside = read_outside(taken, parts, inner)
        for way in (Columns, Slices):
            made = way(axes, reductions, after, outside)
            if made.fits:
                return (taken, *made.kernels())
    return None
