"""Results whose extents depend on the data, on ATen. No other dialect computes them, but for those
with an upper bound.
"""

import torch

from meta import op
from meta.base.errors import IndexOutOfRange
from meta.dialect.torch import torch as dialect


@dialect.kernel(op.argwhere)
def argwhere(condition):
    return torch.argwhere(condition).contiguous()


@dialect.kernel(op.upper_bound_argwhere)
def upper_bound_argwhere(condition):
    chosen = condition.reshape(-1) != 0
    size = chosen.numel()
    # The elements that are not chosen go to one more place, which is cut off.
    places = torch.where(chosen, chosen.cumsum(0) - 1, size)
    positions = torch.full((size + 1,), -1, device=chosen.device)
    positions.scatter_(0, places, torch.arange(size, device=chosen.device))
    count = chosen.sum()
    shape = torch.stack([count, torch.full_like(count, condition.ndim)])
    if size == 0:
        return positions.new_empty(0, condition.ndim), shape
    columns = torch.unravel_index(positions.clamp(min=0), condition.shape)
    indices = torch.stack([positions, *columns], 1)[:size]
    return indices[:, 1:].where(indices[:, :1] >= 0, -1), shape


@dialect.kernel(op.nonzero)
def nonzero(x):
    return tuple(i.contiguous() for i in torch.nonzero(x, as_tuple=True))


@dialect.kernel(op.unique)
def unique(x, return_inverse, return_counts):
    return torch.unique(x, True, return_inverse, return_counts)


@dialect.kernel(op.sparse_fill_empty_rows)
def sparse_fill_empty_rows(indices, values, shape, default):
    count = max(int(shape[0]), 0)
    rows = indices[:, 0].long()
    outside = rows[(rows < 0) | (rows >= count)]
    if len(outside):
        raise IndexOutOfRange(
            f"row {int(outside[0])} of indices is out of range",
            op="sparse_fill_empty_rows",
            expected=f"0 <= row < {count}; {count} is shape[0]",
            found=f"{int(outside[0])}; in all {len(outside)} of {len(rows)} are out of range",
        )
    empty = torch.ones(count, dtype=torch.bool, device=indices.device)
    empty[rows] = False
    missing = torch.nonzero(empty)[:, 0]
    added = indices.new_zeros(len(missing), indices.shape[1])
    added[:, 0] = missing.to(indices.dtype)
    order = torch.argsort(torch.cat([rows, missing]), stable=True)
    filled = torch.cat([values, default.expand(len(missing))])
    return torch.cat([indices, added])[order], filled[order], empty
