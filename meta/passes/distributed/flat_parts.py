"""Flat parts of arrays, in operators: the elements in a row are cut into as many equal parts as
there are ranks along an axis of the mesh, with zeros behind the last one (`Split` without an axis).

So every shape can be split, a part is a contiguous range, and each exchange is one collective.
"""

from __future__ import annotations

from math import prod
from typing import Any

from meta import op
from meta.runtime.placement import Split


def _row(x: Any, split: Split) -> Any:
    """Return the elements of x in a row, with zeros up to a multiple of the number of ranks."""
    count = prod(x.shape)
    (part,) = split.local(x.shape)
    row = op.reshape(x, (count,))
    behind = part * split.size - count
    return op.pad(row, ((0, behind),)) if behind else row


def part_of(x: Any, split: Split, device: object) -> Any:
    """Return this rank's part of x, which is the same on all ranks along the axis; a copy."""
    rows = op.reshape(_row(x, split), (split.size, -1))
    place = op.axis_index(split.over, split.size, str(device))
    return op.take(rows, place, axis=0, mode="fast")


def reduced_part(x: Any, split: Split, reduction: str) -> Any:
    """Return this rank's part of the sum or mean over the ranks of their x."""
    return op.reduce_scatter(_row(x, split), split.over, split.size, reduction)


def gathered(part: Any, split: Split, shape: tuple[int, ...]) -> Any:
    """Return the array of a shape from the parts of all ranks."""
    row = op.all_gather(part, split.over, split.size)
    count = prod(shape)
    if row.shape[0] != count:
        row = op.strided_slice(row, (0,), (count,))
    return op.reshape(row, shape)
