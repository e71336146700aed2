"""`Placement`: which part of an array of a distributed program this rank holds.

An array whose placement has no splits is whole, and equal on all ranks. Optimizer states, norms and
checkpoints ask the placement of a parameter; programs see local shapes only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from meta.base.errors import DistributedError
from meta.runtime.mesh import axis_group, current_mesh

Joined = int | tuple[int, ...]
"""How many arrays of one length lie one after the other along an axis, or how long each is: (4, 1,
1) says that the first is four times as long as each of the others.
"""


def lengths(joined: Joined) -> tuple[int, ...]:
    """Return how long each of the arrays is, beside the others."""
    return (1,) * joined if isinstance(joined, int) else joined


def joined_of(lengths: Sequence[int]) -> Joined:
    """Return arrays of these lengths in one form."""
    unit = math.gcd(*lengths)
    return len(lengths) if set(lengths) == {unit} else tuple(n // unit for n in lengths)


def arrays_of(x: torch.Tensor, axis: int, joined: Joined) -> Sequence[torch.Tensor]:
    """Return views of the arrays that lie one after the other along an axis."""
    parts = lengths(joined)
    unit = x.shape[axis] // sum(parts)
    return torch.tensor_split(x, [n * unit for n in accumulate(parts[:-1])], axis)


@dataclass(frozen=True, slots=True)
class Split:
    """The ranks along an axis of the mesh hold equal parts.

    over: the axis of the mesh. size: its number of ranks. axis: the array's axis that is split, a
    multiple of size long; None: the elements in a row are split, with zeros behind the last one up
    to a multiple of size, and a part has one axis. joined: so many arrays lie one after the other
    along the axis, such as the projections of query, key and value, and each of them is split; or,
    where they differ, how long each is, beside the others.
    """

    over: str
    size: int
    axis: int | None = None
    joined: Joined = 1

    def local(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a part; DistributedError if the axis is no multiple of size."""
        if self.axis is None:
            return (-(-math.prod(shape) // self.size),)
        extent, least = shape[self.axis], sum(lengths(self.joined)) * self.size
        if extent % least:
            raise DistributedError(
                f"axis {self.axis} is not split evenly over {self.over!r}",
                expected=f"a multiple of {least}",
                found=f"{extent} of shape {shape}",
            )
        return (*shape[: self.axis], extent // self.size, *shape[self.axis + 1 :])

    def part(self, x: torch.Tensor, rank: int) -> torch.Tensor:
        """Return the part of a rank, compact, in memory of its own."""
        shape = self.local(tuple(x.shape))
        if self.axis is not None:
            arrays = arrays_of(x, self.axis, self.joined)
            each = [a.shape[self.axis] // self.size for a in arrays]
            own = [a.narrow(self.axis, rank * n, n) for a, n in zip(arrays, each, strict=True)]
            return torch.cat(own, self.axis).contiguous()
        padded = x.new_zeros(self.size * shape[0])
        padded[: x.numel()] = x.reshape(-1)
        return padded[rank * shape[0] :][: shape[0]].clone()

    def join(self, parts: list[torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor:
        """Return the array of a shape from its parts in the order of ranks."""
        if self.axis is not None:
            pieces = zip(*(arrays_of(p, self.axis, self.joined) for p in parts), strict=True)
            return torch.cat([p for piece in pieces for p in piece], self.axis)
        return torch.cat(parts)[: math.prod(shape)].reshape(shape)


@dataclass(frozen=True, slots=True)
class Placement:
    """How the parts of an array lie on the mesh.

    shape: that of the whole array. splits: the whole is split by the first, each part by the
    second, and so on, over different axes of the mesh.
    """

    shape: tuple[int, ...]
    splits: tuple[Split, ...] = ()

    @property
    def local(self) -> tuple[int, ...]:
        """The shape of a part."""
        return self.shapes()[-1]

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shape of the whole, and that after each split."""
        shapes = [self.shape]
        for split in self.splits:
            shapes.append(split.local(shapes[-1]))
        return shapes

    def then(self, split: Split) -> Placement:
        """Return the placement with one split more."""
        if any(split.over == before.over for before in self.splits):
            raise DistributedError(f"an array is split over {split.over!r} already")
        return Placement(self.shape, (*self.splits, split))

    def part(self, whole: torch.Tensor, place: Mapping[str, int]) -> torch.Tensor:
        """Return what the rank at a place, given by the mesh's axes, holds of the whole."""
        for split in self.splits:
            whole = split.part(whole, place[split.over])
        return whole

    def join(self, part: Callable[[Mapping[str, int]], torch.Tensor]) -> torch.Tensor:
        """Return the whole from a function that gives the part at a place."""
        shapes = self.shapes()

        def joined(depth: int, place: Mapping[str, int]) -> torch.Tensor:
            if depth == len(self.splits):
                return part(place)
            split = self.splits[depth]
            parts = [joined(depth + 1, {**place, split.over: r}) for r in range(split.size)]
            return split.join(parts, shapes[depth])

        return joined(0, {})


# Shards of tensors, and their wholes, on the mesh at hand: what a rank holds under one placement
# from what it holds under another with fewer splits, and back.
#
# Programs exchange parts by operators. These functions are for what happens between programs:
# building, loading and evaluating a model.


def rank_along(over: str, size: int) -> int:
    """Return this rank's place along an axis of so many ranks; DistributedError if the mesh has
    none. Along an axis of one rank no mesh is needed.
    """
    return current_mesh().group(over, size).rank if size > 1 else 0


def own_shard(x: torch.Tensor, over: str, size: int) -> torch.Tensor:
    """Return a view of this rank's part of the elements of a compact tensor; see
    `meta.op.own_shard`.
    """
    count = x.numel() // size
    return x.view(-1).narrow(0, rank_along(over, size) * count, count)


def common_splits(before: Placement, after: Placement) -> int:
    """Return the number of splits that one placement has in common with another, which begins with
    them; DistributedError if it does not.
    """
    count = len(before.splits)
    if before.shape != after.shape or after.splits[:count] != before.splits:
        raise DistributedError(
            "a part is no part of another placement",
            expected=f"the splits {before.splits} of {before.shape}, and further ones",
            found=f"the splits {after.splits} of {after.shape}",
        )
    return count


def shard_of(x: torch.Tensor, before: Placement, after: Placement) -> torch.Tensor:
    """Return what this rank holds under a placement from what it holds under one with fewer
    splits; compact, in memory of its own if there are further splits.
    """
    for split in after.splits[common_splits(before, after) :]:
        x = split.part(x, axis_group(split.over).rank)
    return x


def gather_shards(x: torch.Tensor, before: Placement, after: Placement) -> torch.Tensor:
    """Return what this rank holds under a placement from its part under one with further splits.
    All ranks along their axes call it at the same time.
    """
    shapes = before.shapes()
    common = common_splits(after, before)
    for number in reversed(range(common, len(before.splits))):
        split = before.splits[number]
        parts = x.new_empty((split.size, *x.shape))
        if x.numel() and split.size > 1:
            # As bytes: libraries do not know all dtypes.
            given, found = x.contiguous().reshape(-1), parts.reshape(split.size, -1)
            axis_group(split.over).all_gather(found.view(torch.uint8), given.view(torch.uint8))
        else:
            parts.copy_(x.expand_as(parts))
        x = split.join(list(parts), shapes[number])
    return x
