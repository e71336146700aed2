"""Memory planning: where in one arena each intermediate of a straight-line program lives.

Buffers whose lifetimes do not overlap share space. First-fit by decreasing size, which is within a
few percent of optimal on real networks (Pisarchyk and Lee, "Efficient memory management for deep
neural net inference", 2020).
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
    offsets = [0] * len(lifetimes)
    placed: list[int] = []
    for i in sorted(range(len(lifetimes)), key=lambda i: -lifetimes[i].size):
        life = lifetimes[i]
        taken = sorted(
            (offsets[j], offsets[j] + aligned(lifetimes[j].size))
            for j in placed
            if lifetimes[j].first <= life.last and life.first <= lifetimes[j].last
        )
        offset = 0
        for start, end in taken:
            if offset + aligned(life.size) <= start:
                break
            offset = max(offset, end)
        offsets[i] = offset
        placed.append(i)
    return offsets, max((offsets[i] + aligned(lifetimes[i].size) for i in placed), default=0)


def aligned(size: int) -> int:
    """Round a size up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT
