"""Shards of a checkpoint: who of the ranks writes what of the arrays of a checkpoint, and arrays of
what they wrote.

An array that is split (`meta.runtime.placement.Placement`) is written in parts, by ranks that have
them; what is the same on several ranks is written once, by those that have least to write so far.
So a checkpoint does not depend on how the ranks that read it split the arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from meta.base.dtype import TO_TORCH
from meta.runtime.ndarray import ndarray
from meta.runtime.placement import Placement, Split

MeshSizes = Mapping[str, int]
"""The axes of a mesh, the last one the fastest among the numbers of ranks."""


@dataclass(frozen=True, slots=True)
class ShardedArray:
    """How an array is written.

    dtype: its name. placement: its parts. at: by the other axes of the mesh, the place of the ranks
    that write them.
    """

    dtype: str
    placement: Placement
    at: Mapping[str, int]

    def record(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return {
            "dtype": self.dtype,
            "shape": list(self.placement.shape),
            "splits": [[s.over, s.size, s.axis, s.joined] for s in self.placement.splits],
            "at": dict(self.at),
        }

    @classmethod
    def of(cls, record: Any, sizes: MeshSizes) -> ShardedArray:
        """Return it from its record; ValueError, KeyError or TypeError for one that is damaged."""
        shape = tuple(_require_int(extent, 0) for extent in record["shape"])
        splits = []
        for over, size, axis, joined in record["splits"]:
            if sizes.get(over, 1) != size or not (axis is None or 0 <= axis < max(1, len(shape))):
                raise ValueError(f"a split over {over!r}")
            several = isinstance(joined, list) and len(joined) > 1
            pieces = (
                tuple(_require_int(n, 1) for n in joined) if several else _require_int(joined, 1)
            )
            splits.append(Split(over, size, axis, pieces))
        placement = Placement(shape, tuple(splits))
        placement.shapes()  # its parts are equal, or this raises
        at = {name: _require_int(record["at"].get(name, 0), 0) for name in sizes}
        if any(at[name] >= size for name, size in sizes.items()) or record["dtype"] not in TO_TORCH:
            raise ValueError(f"an array of {record['dtype']} at {at}")
        return cls(record["dtype"], placement, at)

    def is_written_by(self, place: Mapping[str, int]) -> bool:
        """Whether a rank writes a part."""
        split = {s.over for s in self.placement.splits}
        return all(place[name] == at for name, at in self.at.items() if name not in split)

    def assemble(self, part: Callable[[int], torch.Tensor], sizes: MeshSizes) -> torch.Tensor:
        """Return the array from a function that gives what the rank of a number wrote."""
        return self.placement.join(lambda place: part(rank_number({**self.at, **place}, sizes)))


def _require_int(value: Any, least: int) -> int:
    if type(value) is not int or value < least:
        raise ValueError(f"{value!r} is no number of that kind")
    return value


def rank_number(place: Mapping[str, int], sizes: MeshSizes) -> int:
    """Return the number of the rank at a place."""
    number = 0
    for name, size in sizes.items():
        number = number * size + place[name]
    return number


def mesh_coordinates(sizes: MeshSizes) -> Iterator[dict[str, int]]:
    """Iterate over the places of all ranks, in the order of their numbers."""
    for found in product(*(range(size) for size in sizes.values())):
        yield dict(zip(sizes, found, strict=True))


def assign_writers(arrays: Mapping[str, ndarray], sizes: MeshSizes) -> dict[str, ShardedArray]:
    """Return how arrays are written, by name, the same on all ranks: large ones first, each by the
    ranks that have least to write.
    """
    load = [0] * math.prod(sizes.values())
    found: dict[str, ShardedArray] = {}
    for name in sorted(arrays, key=lambda n: (-arrays[n].nbytes, n)):
        array = arrays[name]
        placement = array.placement
        split = {s.over for s in placement.splits}
        free = {axis: size for axis, size in sizes.items() if axis not in split}
        ranks = {
            tuple(at.items()): [
                rank_number({**at, **of_split}, sizes)
                for of_split in mesh_coordinates({a: s for a, s in sizes.items() if a in split})
            ]
            for at in mesh_coordinates(free)
        }
        chosen = min(ranks, key=lambda at: max(load[rank] for rank in ranks[at]))
        for rank in ranks[chosen]:
            load[rank] += array.nbytes
        found[name] = ShardedArray(array.dtype, placement, dict(chosen))
    return {name: found[name] for name in arrays}
