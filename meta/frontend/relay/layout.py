"""Layouts, "NCHW16c": reading them, and changing a tensor from one to another.

An upper case letter is a whole (primal) axis, its outer part where the layout splits it; a number
with a lower case letter is an inner part of that many elements. Several parts of one axis nest in
the order in which they stand, outermost first.

Converters of windows (convolution, pooling) give a layout that only orders the axes to the base
operator as it is; one that splits an axis is changed to such a one before, and back behind.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

from meta import op
from meta.frontend.core import Unconvertible

_AXIS = re.compile(r"([A-Z])|([0-9]{1,9})([a-z])")


@dataclass(frozen=True, slots=True)
class Layout:
    """The letter of every axis, and the extent that it has as an inner part, else None."""

    axes: tuple[tuple[str, int | None], ...]

    @property
    def primal(self) -> str:
        """The letters of the primal axes in order: the layout without its inner parts."""
        return "".join(letter for letter, factor in self.axes if factor is None)

    @property
    def is_plain(self) -> bool:
        """Whether no axis is split."""
        return all(factor is None for _, factor in self.axes)

    def parts(self, letter: str) -> tuple[int, ...]:
        """Return the extents of the inner parts of a primal axis, outermost first."""
        return tuple(f for a, f in self.axes if a == letter and f is not None)

    def places(self, letter: str) -> tuple[int, ...]:
        """Return where the parts of a primal axis stand: the outer part, then the inner ones."""
        outer = [i for i, (a, f) in enumerate(self.axes) if a == letter and f is None]
        return (*outer, *(i for i, (a, f) in enumerate(self.axes) if a == letter and f))


@cache
def read_layout(text: str) -> Layout:
    """Read "NCHW", "NCHW16c", "OIHW4i16o4i"; Unconvertible for what is no layout."""
    found = list(_AXIS.finditer(text))
    axes = tuple((m[1], None) if m[1] else (m[3].upper(), int(m[2])) for m in found)
    letters = [a for a, factor in axes if factor is None]
    whole = "".join(m[0] for m in found) == text
    sane = len(set(letters)) == len(letters) and all(
        a in letters and (factor is None or factor > 0) for a, factor in axes
    )
    if not (text and whole and sane):
        raise Unconvertible(f"{text!r} is no layout", hint='such as "NHWC" or "NCHW16c"')
    return Layout(axes)


def change_layout(x: Any, source: str, target: str) -> Any:
    """Return a tensor in another layout, as views and transpositions.

    An axis that the target splits is filled up with zeros to a multiple of the inner parts; one
    that the source splits keeps what it was filled up with. The layouts name the same axes.
    """
    old, new = read_layout(source), read_layout(target)
    if old == new:
        return x
    if len(old.axes) != len(x.shape):
        raise Unconvertible(f"a tensor with {len(x.shape)} axes has no layout {source!r}")
    if sorted(old.primal) != sorted(new.primal):
        raise Unconvertible(f"the layouts {source!r} and {target!r} name different axes")
    return _split(_merge_blocks(x, old, new.primal), new)


def to_plain(x: Any, layout: str) -> Any:
    """Return a tensor with its split axes merged: "NCHW16c" becomes "NCHW"."""
    return change_layout(x, layout, read_layout(layout).primal)


def _transposed(x: Any, axes: tuple[int, ...]) -> Any:
    return x if axes == tuple(range(len(axes))) else op.permute_dims(x, axes)


def _merge_blocks(x: Any, layout: Layout, order: str) -> Any:
    """Return a tensor without inner parts, its axes in the given order of letters."""
    groups = [layout.places(letter) for letter in order]
    x = _transposed(x, tuple(i for group in groups for i in group))
    if layout.is_plain:
        return x
    extents, at = [], 0
    for group in groups:
        extents.append(prod(x.shape[at : at + len(group)]))
        at += len(group)
    return op.reshape(x, tuple(extents))


def _split(x: Any, layout: Layout) -> Any:
    """Return a tensor whose axes are the primal letters in order with the layout's inner parts."""
    if layout.is_plain:
        return x
    extents: list[Any] = []
    pad_width: list[int] = []
    order: list[int] = []
    for letter, extent in zip(layout.primal, x.shape, strict=True):
        parts = layout.parts(letter)
        size = prod(parts)
        missing = -extent % size if parts else 0
        pad_width += [0, missing]
        extents += [(extent + missing) // size if parts else extent, *parts]
        order += layout.places(letter)
    if any(p != 0 for p in pad_width):
        x = op.pad.plain(x, tuple(pad_width))
    x = op.reshape(x, tuple(extents))
    return _transposed(x, tuple(order.index(i) for i in range(len(order))))


def per_axis(values: int | tuple[int, ...]) -> int | tuple[int, ...]:
    """Return a list of numbers as base operators take them: a single one holds for all axes."""
    return values[0] if isinstance(values, tuple) and len(values) == 1 else values


def extents(x: Any, layout: str, letters: str) -> tuple[Any, ...]:
    """Return x's extents along the axes that ``letters`` name in a plain layout."""
    return tuple(x.shape[layout.index(letter)] for letter in letters)


def unblocked(layout: str) -> str:
    """Return a layout without its inner parts, "NCHW" of "NCHW16c"."""
    return read_layout(layout).primal
