"""Which reductions have the same axes, and which stages are of their results; see `reductions`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from meta.dialect.tvm.schedule_cuda.walk import (
    Access,
    Part,
    access,
    all_reads,
    compact,
    computed_by,
    slides,
)


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


def groups(parts: Sequence[Part]) -> Iterator[tuple[Axes, list[Part], list[Part]]]:
    """Yield axes, the reductions of these that can be made now, and stages of their results."""
    missing = computed_by(parts)
    for first in parts:
        axes = _axes_of(first)
        if axes is None or first.combine is None or slides(first):
            continue
        made: set[Any] = set()
        reductions: list[Part] = []
        after: list[Part] = []
        for part in parts:
            if _axes_of(part) == axes and part.combine is not None:
                if _available(part, set(), missing):
                    reductions.append(part)
                    made.add(part.stage.buffer)
            elif (
                _results_of(part) == axes.results
                and _available(part, made, missing)
                and any(node.source in made for node in all_reads(part.value))
            ):
                after.append(part)
                made.add(part.stage.buffer)
        if first in reductions:
            yield axes, reductions, after


def _axes_of(part: Part) -> Axes | None:
    reduced = tuple(e for e in part.stage.reduce if e is not None and e != 1)
    results = tuple(e for e in part.stage.spatial if e is not None and e != 1)
    return Axes(results, reduced) if reduced else None


def _results_of(part: Part) -> tuple[int, ...] | None:
    if part.stage.reduce:
        return None
    return tuple(e for e in part.stage.spatial if e is not None and e != 1)


def _available(part: Part, made: set[Any], missing: set[Any]) -> bool:
    """Whether all that a part reads is there: of what is made, the result of its own place."""
    own = part.stage.buffer
    extents = tuple(e for e in part.stage.spatial if e is not None)
    line = compact(extents)
    for node in all_reads(part.value):
        if node.source.same_as(own):
            continue
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
