"""Trees of arrays as vectors, which solvers compute with."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from meta import op
from meta.base.call_context import current
from meta.base.errors import ArgumentError
from meta.model.loop import Carry
from meta.op.core.function import device_of
from meta.op.core.tracing import Trace

DTYPES = ("float32", "float64")


class TreeSpace:
    """The trees like one, which may be of a trace: their arrays one after the other as a vector.

    Raises ArgumentError for arrays that are not of one dtype, float32 or float64, and of extents
    that are known.
    """

    def __init__(self, tree: Any, what: str) -> None:
        self.what, self.like = what, _carry(tree)
        leaves = self.like.leaves
        self.shapes = [tuple(x.shape) for x in leaves]
        known = all(isinstance(n, int) for shape in self.shapes for n in shape)
        dtypes = {str(x.dtype) for x in leaves}
        if len(dtypes) != 1 or not dtypes <= set(DTYPES) or not known:
            raise ArgumentError(
                f"{what} is solved for as one vector",
                expected="arrays of one dtype, float32 or float64, whose extents are numbers",
                found=str(self.like),
            )
        self.sizes = [prod(shape) for shape in self.shapes]
        self.dtype, self.device = str(leaves[0].dtype), device_of(leaves[0])

    def vector(self, tree: Any) -> Any:
        """Return a tree as a vector; ArgumentError if it is not like the one that was given."""
        found = _carry(tree, self.like)
        if found.key != self.like.key:
            raise ArgumentError(
                f"this does not have the structure and types of {self.what}",
                expected=str(self.like),
                found=str(found),
            )
        pairs = zip(found.leaves, self.sizes, strict=True)
        return op.concat(tuple(op.reshape(x, (size,)) for x, size in pairs), 0)

    def tree(self, vector: Any) -> Any:
        """Return a vector as a tree."""
        leaves, at = [], 0
        for shape, size in zip(self.shapes, self.sizes, strict=True):
            leaves.append(op.reshape(vector[at : at + size], shape))
            at += size
        return self.like.tree(leaves)

    def map(self, f: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a function of trees as one of vectors."""
        return lambda v: self.vector(f(self.tree(v)))

    def number(self, value: float) -> Any:
        """Return a number as an array of the dtype."""
        return op.full((), value, self.dtype, self.device)


def _carry(tree: Any, like: Carry | None = None) -> Carry:
    trace = current()
    return Carry(tree, trace if isinstance(trace, Trace) else None, like)


def dot(x: Any, y: Any) -> Any:
    """Return the product of two vectors."""
    return op.sum(x * y)
