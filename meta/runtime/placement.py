"""`Placement`: which part of an array of a distributed program this rank holds.

An array whose placement has no splits is whole, and equal on all ranks. Optimizer states, norms and
checkpoints ask the placement of a parameter; programs see local shapes only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from meta.base.errors import DistributedError


@dataclass(frozen=True, slots=True)
class Split:
    """The ranks along an axis of the mesh hold equal parts.

    over: the axis of the mesh. size: its number of ranks. axis: the array's axis that is split, a
    multiple of size long; None: the elements in a row are split, with zeros behind the last one up
    to a multiple of size, and a part has one axis. joined: so many arrays lie one after the other
    along the axis, such as the projections of query, key and value, and each of them is split.
    """

    over: str
    size: int
    axis: int | None = None
    joined: int = 1

    def local(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a part; DistributedError if the axis is no multiple of size."""
        if self.axis is None:
            return (-(-math.prod(shape) // self.size),)
        extent = shape[self.axis]
        if extent % (self.joined * self.size):
            raise DistributedError(
                f"axis {self.axis} is not split evenly over {self.over!r}",
                expected=f"a multiple of {self.joined * self.size}",
                found=f"{extent} of shape {shape}",
            )
        return (*shape[: self.axis], extent // self.size, *shape[self.axis + 1 :])

    def part(self, x: torch.Tensor, rank: int) -> torch.Tensor:
        """Return the part of a rank, compact, in memory of its own."""
        shape = self.local(tuple(x.shape))
        if self.axis is not None:
            each = shape[self.axis] // self.joined
            before, after = shape[: self.axis], shape[self.axis + 1 :]
            arrays = x.reshape(*before, self.joined, self.size, each, *after)
            own = arrays.select(self.axis + 1, rank)
            return own.clone(memory_format=torch.contiguous_format).reshape(shape)
        padded = x.new_zeros(self.size * shape[0])
        padded[: x.numel()] = x.reshape(-1)
        return padded[rank * shape[0] :][: shape[0]].clone()

    def join(self, parts: list[torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor:
        """Return the array of a shape from its parts in the order of ranks."""
        if self.axis is not None:
            each = shape[self.axis] // (self.joined * self.size)
            before, after = shape[: self.axis], shape[self.axis + 1 :]
            arrays = [p.reshape(*before, self.joined, each, *after) for p in parts]
            return torch.cat(arrays, self.axis + 1).reshape(shape)
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
