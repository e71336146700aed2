"""Flat shards of arrays, in operators: the elements in a row are cut into as many equal parts as
there are ranks along an axis of the mesh, with zeros behind the last one (`Split` without an axis).

So every shape can be split, a part is a contiguous range, and each exchange is one collective.
Where no zeros are needed a part is a view of its array. Of the others, what is small is exchanged
together, in one for many arrays: that costs a copy, and spares the time that a collective takes
whatever its size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any

from meta import op
from meta.base.dtype import bits
from meta.runtime.placement import Split

SMALL_BYTES = 32 * 1024
"""Arrays of at most so many bytes are exchanged together,"""
BUCKET_BYTES = 1024 * 1024
"""up to so many bytes at a time."""
ALIGNMENT = 16
"""Bytes: where a part begins."""


def _flat_padded(x: Any, split: Split) -> Any:
    """Return the elements of x in a row, with zeros up to a multiple of the number of ranks."""
    count = prod(x.shape)
    (part,) = split.local(x.shape)
    row = op.reshape(x, (count,))
    behind = part * split.size - count
    return op.pad(row, ((0, behind),)) if behind else row


def is_in_place(x: Any, split: Split) -> bool:
    """Whether the parts of x are seen and exchanged where they lie: they are of one length, and
    each begins at an address that kernels read vectors from.
    """
    count: int = prod(x.shape)
    return count % split.size == 0 and count // split.size * bits(x.dtype) % (8 * ALIGNMENT) == 0


def own_shard(x: Any, split: Split, place: Any) -> Any:
    """Return this rank's part of x, which is the same on all ranks along the axis: a view where
    `is_in_place`, else a copy. place: `axis_index` of the axis, which a view does not need.
    """
    if is_in_place(x, split):
        return op.own_shard(x, split.over, split.size)
    rows = op.reshape(_flat_padded(x, split), (split.size, -1))
    return op.take(rows, place, axis=0, mode="fast")


def reduce_scatter(x: Any, split: Split, reduction: str) -> Any:
    """Return this rank's part of the sum or mean over the ranks of their x."""
    return op.reduce_scatter(_flat_padded(x, split), split.over, split.size, reduction)


def all_gather(part: Any, split: Split, shape: tuple[int, ...]) -> Any:
    """Return the array of a shape from the parts of all ranks."""
    row = op.all_gather(part, split.over, split.size)
    count = prod(shape)
    if row.shape[0] != count:
        row = op.strided_slice(row, (0,), (count,))
    return op.reshape(row, shape)


def buckets(arrays: Mapping[str, Any], split: Split) -> Iterator[list[str]]:
    """Yield the names of arrays that are exchanged together: of one dtype, in their order. What is
    not small is alone, and so is what `is_in_place`, of which `bucket_collectives` makes one
    exchange without a copy.
    """
    open_: dict[str, tuple[list[str], int]] = {}
    for name, x in arrays.items():
        size = prod(x.shape) * bits(x.dtype) // 8
        if size > SMALL_BYTES or is_in_place(x, split):
            yield [name]
            continue
        names, total = open_.get(x.dtype, ([], 0))
        if total + size > BUCKET_BYTES:
            yield names
            names, total = [], 0
        open_[x.dtype] = [*names, name], total + size
    for names, _ in open_.values():
        yield names


def bucket_reduce_scatter(arrays: Sequence[Any], split: Split, reduction: str) -> list[Any]:
    """Return `reduce_scatter` of each of several arrays of one dtype, by one exchange."""
    if len(arrays) == 1:
        return [reduce_scatter(arrays[0], split, reduction)]
    rows = [op.reshape(_flat_padded(x, split), (split.size, -1)) for x in arrays]
    row = op.reshape(op.concat(rows, axis=1), (-1,))
    part = op.reduce_scatter(row, split.over, split.size, reduction)
    return [
        op.strided_slice(part, (start,), (end,)) for start, end in _ranges(r.shape[1] for r in rows)
    ]


def bucket_all_gather(
    parts: Sequence[Any], split: Split, shapes: Sequence[tuple[int, ...]], dtype: str | None = None
) -> list[Any]:
    """Return `all_gather` of several parts of one dtype, by one exchange; in ``dtype``, if any."""
    joined = parts[0] if len(parts) == 1 else op.concat(list(parts))
    joined = joined if dtype is None else op.astype(joined, dtype)
    if len(parts) == 1:
        return [all_gather(joined, split, shapes[0])]
    rows = op.reshape(op.all_gather(joined, split.over, split.size), (split.size, -1))
    found = []
    for (start, end), shape in zip(_ranges(p.shape[0] for p in parts), shapes, strict=True):
        row = op.reshape(op.strided_slice(rows, (0, start), (split.size, end)), (-1,))
        count = prod(shape)
        if row.shape[0] != count:
            row = op.strided_slice(row, (0,), (count,))
        found.append(op.reshape(row, shape))
    return found


def _ranges(lengths: Iterable[int]) -> list[tuple[int, int]]:
    """Return where arrays of these lengths begin and end that lie one behind the other."""
    ends = [0, *accumulate(lengths)]
    return list(pairwise(ends))
