"""Which axes a reduction sums over and which of them stay, for type functions and kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from meta.base.dtype import has_gradient
from meta.op.core.check import normalize_axes, require


def sum_dtype(dtype: str) -> str:
    """Return the dtype of a sum or product of elements: integers of 64 bits, bool is counted."""
    if has_gradient(dtype):
        return dtype
    return "uint64" if dtype.startswith("uint") else "int64"


@dataclass(frozen=True, slots=True)
class Reduction:
    """The reduced ``axes``, sorted, and those of them that are ``kept`` with extent 1."""

    axes: tuple[int, ...]
    kept: tuple[int, ...]

    def shape(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """Return the shape of the result for an argument of this shape."""
        gone = set(self.axes) - set(self.kept)
        return tuple(1 if i in self.axes else d for i, d in enumerate(shape) if i not in gone)

    def kept_shape(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """Return the shape with all reduced axes kept; it broadcasts to ``shape``."""
        return tuple(1 if i in self.axes else d for i, d in enumerate(shape))

    def count(self, shape: Sequence[int]) -> int:
        """Return how many elements are reduced to one."""
        return prod(shape[i] for i in self.axes)


def reduction(
    ndim: int,
    axis: int | tuple[int, ...] | None,
    keepdims: bool | int | tuple[int, ...] = False,
    exclude: bool = False,
) -> Reduction:
    """Read the arguments of a reduction.

    ``axis`` None means all axes, () none; ``exclude`` all but those named. ``keepdims`` is one flag
    for all axes, or a tuple with one per entry of ``axis``.
    """
    if not isinstance(keepdims, tuple):
        axes = normalize_axes(axis, ndim, exclude)
        return Reduction(axes, axes if keepdims else ())
    require(axis is not None, "keepdims is one flag where axis is None", found=keepdims)
    named = (axis,) if isinstance(axis, int) else axis or ()
    require(not exclude, "exclude takes one keepdims for all axes", found=f"keepdims={keepdims}")
    require(
        len(named) == len(keepdims),
        "keepdims must be one flag, or one per entry of axis",
        expected=f"{len(named)} flags",
        found=keepdims,
    )
    axes = normalize_axes(named, ndim)
    return Reduction(
        axes, tuple(sorted(a % ndim for a, k in zip(named, keepdims, strict=True) if k))
    )
