"""Places for buffers in one arena.

Buffers that are not in use at the same time share space. The problem is NP-hard ("dynamic storage
allocation"). First fit in order of decreasing size is within a few percent of the bound on real
networks (Pisarchyk and Lee, "Efficient memory management for deep neural net inference",
arXiv:2001.03288). Where it is not at the bound, other orders are tried, in which what ends highest
is placed first, and the smallest arena is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType
from typing import Any

import numpy as np

from meta.runtime.allocate import aligned


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer of ``size`` bytes, in use from step ``first`` to step ``last``, both included."""

    size: int
    first: int
    last: int


def plan(
    lifetimes: Sequence[Lifetime],
    fixed: Mapping[int, int] = MappingProxyType({}),
    stacked: Sequence[int] = (),
) -> tuple[list[int], int]:
    """Return the offset of each buffer, a multiple of 64, and the size of the arena, in bytes.

    fixed: offsets of buffers that have one, by their numbers. stacked: the numbers of those that
    are placed before all others, from the bottom on in this order.
    """
    together = _overlaps(lifetimes)
    bound = max([least(lifetimes), *(at + aligned(lifetimes[i].size) for i, at in fixed.items())])
    first = set(stacked)
    rest = [i for i in range(len(lifetimes)) if i not in first and i not in fixed]
    best: tuple[list[int], int] | None = None
    for order in _ORDERS:
        ordered = sorted(rest, key=order(lifetimes))
        for _ in range(TRIES):
            offsets, size = _first_fit(lifetimes, together, [*stacked, *ordered], fixed)
            if best is None or size < best[1]:
                best = offsets, size
            if best[1] == bound:
                return best
            top = {i for i in ordered if offsets[i] + aligned(lifetimes[i].size) == size}
            ordered = sorted(ordered, key=lambda i, top=top: i not in top)  # type: ignore[misc]
    assert best is not None
    return best


TRIES = 12
"""Placements per order: after each, the buffers that end highest come first."""
_ORDERS = (
    lambda lives: lambda i: -lives[i].size,
    lambda lives: lambda i: (lives[i].first - lives[i].last, -lives[i].size),
    lambda lives: lambda i: -lives[i].size * (lives[i].last - lives[i].first + 1),
)
"""By size, by length of life, by both; the largest first."""


def least(lifetimes: Sequence[Lifetime]) -> int:
    """Return the bytes that are in use at the worst moment, aligned: no arena is smaller."""
    changes: dict[int, int] = {}
    for life in lifetimes:
        changes[life.first] = changes.get(life.first, 0) + aligned(life.size)
        changes[life.last + 1] = changes.get(life.last + 1, 0) - aligned(life.size)
    return max(accumulate(changes[moment] for moment in sorted(changes)), default=0)


def _overlaps(lifetimes: Sequence[Lifetime]) -> list[Any]:
    """Return for each buffer the others that are in use meanwhile, and at last one that is none."""
    first = np.array([life.first for life in lifetimes])
    last = np.array([life.last for life in lifetimes])
    none = np.array([len(lifetimes)])
    found = []
    for i, life in enumerate(lifetimes):
        meets = (first <= life.last) & (last >= life.first)
        meets[i] = False
        found.append(np.concatenate([meets.nonzero()[0], none]))
    return found


def _first_fit(
    lifetimes: Sequence[Lifetime],
    together: list[Any],
    order: Sequence[int],
    fixed: Mapping[int, int],
) -> tuple[list[int], int]:
    """Give each buffer, in this order, the lowest place that is free for as long as it lives."""
    # Where buffers begin and end: far away as long as they have no place, as what is none does.
    begin = np.full(len(lifetimes) + 1, _FAR)
    end = np.zeros(len(lifetimes) + 1, np.int64)
    for i, at in fixed.items():
        begin[i], end[i] = at, at + aligned(lifetimes[i].size)
    for i in order:
        others, size = together[i], aligned(lifetimes[i].size)
        begins = begin[others]
        upwards = begins.argsort()
        # Before each of them, in this order, all is free from here on.
        free = np.zeros(len(others), np.int64)
        np.maximum.accumulate(end[others[upwards[:-1]]], out=free[1:])
        fits = begins[upwards] - free >= size
        begin[i] = free[fits.argmax()]
        end[i] = begin[i] + size
    return begin[:-1].tolist(), int(end.max())


_FAR = 1 << 62
