"""Repeated layers of a program's graph: runs of nodes that follow one another several times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

LEAST_SAVED = 4
"""Nodes that a repetition has to leave out."""
LEAST_OF_LAST = 0.75
"""How much of the last repetition has to be there."""
MOST_NODES = 4000
"""Of a graph in which repetitions are looked for."""


@dataclass(frozen=True)
class Repetition:
    """``period`` nodes from ``start`` on, after which ``saved`` more repeat them: the last time,
    a few at the end may be others.
    """

    start: int
    period: int
    saved: int

    @property
    def count(self) -> int:
        """How often they come."""
        return 1 + -(-self.saved // self.period)

    @property
    def missing(self) -> int:
        """How many come once less."""
        return -self.saved % self.period


def repetitions(nodes: Sequence[Any]) -> list[Repetition]:
    """Return the repetitions of a graph, in its order, each as long as can be.

    nodes: each behind those that it takes values of, ``before``; ``key`` is what it computes.
    Repetitions take the same values from before the first one, and of one another what the first
    one takes of the nodes before it.
    """
    numbers: dict[tuple[str, ...], int] = {}
    kinds = np.array([numbers.setdefault(n.key, len(numbers)) for n in nodes[:MOST_NODES]])
    places = {id(n): i for i, n in enumerate(nodes)}
    for node in (b for n in nodes for b in n.before):
        places.setdefault(id(node), len(nodes) - len(places) - 1)  # an input: below 0
    sources = [[places[id(b)] for b in n.before] for n in nodes]
    return _within(kinds, sources, 0, len(kinds))


Numbers = np.ndarray[Any, np.dtype[np.int64]]


def _within(
    kinds: Numbers, sources: Sequence[Sequence[int]], begin: int, end: int
) -> list[Repetition]:
    """Return the repetitions between two nodes: the one that saves most, and those beside it."""
    best = Repetition(begin, 1, LEAST_SAVED - 1)
    for period in range(1, end - begin - best.saved):
        same = kinds[begin + period : end] == kinds[begin : end - period]
        edges = np.flatnonzero(np.diff(np.concatenate(([0], same.view(np.int8), [0]))))
        runs = edges.reshape(-1, 2)[edges[1::2] - edges[::2] > best.saved]
        for first, last in (runs + begin).tolist():  # where same is True
            for start in range(first, last - best.saved):
                matching = _matching(sources, start, period, last - start)
                rest = matching % period
                saved = matching if rest >= LEAST_OF_LAST * period else matching - rest
                if saved > best.saved:
                    best = Repetition(start, period, saved)
                if start + matching == last:
                    break  # who begins later saves less
    if best.saved < LEAST_SAVED:
        return []
    before = _within(kinds, sources, begin, best.start)
    behind = best.start + best.period + best.saved
    return [*before, best, *_within(kinds, sources, behind, end)]


def _matching(sources: Sequence[Sequence[int]], start: int, period: int, most: int) -> int:
    """Return how many nodes are one period later again, with the same edges."""
    for number in range(most):
        i = start + number
        own = i - number % period  # where the earlier of two repetitions begins
        if len(sources[i]) != len(sources[i + period]):
            return number
        for a, b in zip(sources[i], sources[i + period], strict=True):
            if a >= max(start, own - period):
                fits = b == a + period
            else:  # of what is before all: the same, or what the first one takes on
                fits = b == a or (own == start and own <= b < own + period)
            if not fits:
                return number
    return most
