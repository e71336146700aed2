"""Where in one arena each of a set of buffers lives. Those not in use at the same time share space.

The problem is NP-hard ("dynamic storage allocation"). First fit in order of decreasing size is
within a few percent of the bound on real networks (Pisarchyk and Lee, "Efficient memory management
for deep neural net inference", arXiv:2001.03288). Where it is not at the bound, other orders are
tried, in which what ends highest is placed first, and the smallest arena is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer of ``size`` bytes, in use from step ``first`` to step ``last``, both included."""

    size: int
    first: int
    last: int


def plan(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Return the offset of each buffer and the size of the arena, in bytes. Offsets are multiples
    of 64.
    """
    together = _overlaps(lifetimes)
    bound = least(lifetimes)
    best: tuple[list[int], int] | None = None
    for order in _ORDERS:
        ordered = sorted(range(len(lifetimes)), key=order(lifetimes))
        for _ in range(TRIES):
            offsets, size = _first_fit(lifetimes, together, ordered)
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
    total = most = 0
    for moment in sorted(changes):
        total += changes[moment]
        most = max(most, total)
    return most


def aligned(size: int) -> int:
    """Round a size up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def _overlaps(lifetimes: Sequence[Lifetime]) -> list[list[int]]:
    """Return for each buffer the others that are in use at the same time as it."""
    found: list[list[int]] = [[] for _ in lifetimes]
    active: list[int] = []
    for i in sorted(range(len(lifetimes)), key=lambda i: lifetimes[i].first):
        active = [j for j in active if lifetimes[j].last >= lifetimes[i].first]
        for j in active:
            found[i].append(j)
            found[j].append(i)
        active.append(i)
    return found


def _first_fit(
    lifetimes: Sequence[Lifetime], together: list[list[int]], order: list[int]
) -> tuple[list[int], int]:
    """Give each buffer, in this order, the lowest place that is free for as long as it lives."""
    ends: list[int | None] = [None] * len(lifetimes)
    offsets = [0] * len(lifetimes)
    for i in order:
        size, offset = aligned(lifetimes[i].size), 0
        taken = sorted((offsets[j], end) for j in together[i] if (end := ends[j]) is not None)
        for start, end in taken:
            if offset + size <= start:
                break
            offset = max(offset, end)
        offsets[i], ends[i] = offset, offset + size
    return offsets, max((end for end in ends if end is not None), default=0)
