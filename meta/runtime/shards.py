"""Shards of tensors, and their wholes, on the mesh at hand: what a rank holds under one placement
from what it holds under another with fewer splits, and back.

Programs exchange parts by operators. These functions are for what happens between programs:
building, loading and evaluating a model.
"""

from __future__ import annotations

import torch

from meta.base.errors import DistributedError
from meta.runtime.mesh import axis_group, current_mesh
from meta.runtime.placement import Placement


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
