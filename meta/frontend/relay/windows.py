"""What the converters of windows (convolution, pooling) share: numbers per axis, and layouts.

A layout that only orders the axes is given to the base operator as it is; one that splits an axis
("NCHW16c") is changed to such a one before, and back behind.
"""

from __future__ import annotations

from typing import Any

from meta.frontend.relay.layout import read_layout


def per_axis(values: int | tuple[int, ...]) -> int | tuple[int, ...]:
    """Return a list of numbers as base operators take them: a single one holds for all axes."""
    return values[0] if isinstance(values, tuple) and len(values) == 1 else values


def extents(x: Any, layout: str, letters: str) -> tuple[Any, ...]:
    """Return x's extents along the axes that ``letters`` name in a plain layout."""
    return tuple(x.shape[layout.index(letter)] for letter in letters)


def plain(layout: str) -> str:
    """Return a layout without its inner parts, "NCHW" of "NCHW16c"."""
    return read_layout(layout).primal
