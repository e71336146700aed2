"""Which axis of one array is which axis of another, and what stands between the two products.

An axis of the scores may be one dimension here (batch and heads merged) and several there. So a
dimension is described by the axes that it is made of, outermost first, and an axis that turns out
to be several is split, for all descriptions at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from meta.ir import Expr, Var
from meta.passes.calls import OpCall

Group = tuple["Axis", ...]
"""The axes that one dimension is made of."""


@dataclass(eq=False, slots=True)
class Axis:
    """An axis of a computation: of one extent, unless it was split.

    ``solid``: whether it must not be split; ``parts``: what it was split into.
    """

    extent: int
    solid: bool = False
    parts: tuple[Axis, ...] = ()

    def leaves(self) -> list[Axis]:
        """Return what it is made of; nothing for an extent of 1, which may be anywhere."""
        if self.parts:
            return [leaf for part in self.parts for leaf in part.leaves()]
        return [self] if self.extent != 1 else []


def leaves(*groups: Group) -> list[Axis]:
    """Return the axes of dimensions in their order."""
    return [leaf for group in groups for axis in group for leaf in axis.leaves()]


def extent(axes: Iterable[Axis]) -> int:
    """Return how many elements there are along axes."""
    return prod(axis.extent for axis in axes)


def grouped(axes: Sequence[Axis], shape: Sequence[int]) -> list[Group] | None:
    """Return which of these axes each dimension of a shape is made of; None if that is none.

    Axes are split where dimensions end inside of them.
    """
    waiting, groups = list(reversed(axes)), []
    for size in shape:
        group: list[Axis] = []
        while size != 1:
            if not waiting or size == 0:
                return None
            axis = waiting.pop()
            if size % axis.extent == 0:
                group.append(axis)
                size //= axis.extent
                continue
            if axis.extent % size or axis.solid:
                return None
            axis.parts = Axis(size), Axis(axis.extent // size)
            group.append(axis.parts[0])
            waiting.append(axis.parts[1])
            size = 1
        groups.append(tuple(group))
    return None if waiting else groups


class Refused(Exception):
    """Why a softmax between two products does not become attention."""


@dataclass(frozen=True, slots=True)
class Step:
    """One call between the two products. ``x``: what it is applied to; ``var``: its result."""

    kind: str
    var: Var
    x: Expr
    made: OpCall
    value: Any = None
