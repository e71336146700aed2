"""Reversing, shifting, tiling, masking and block moves on ATen. Results are fresh and compact."""

import torch

from meta import op
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.init import fill
from meta.dialect.torch.transform import fresh
from meta.op.movement import roll_shifts, tile_counts


@dialect.kernel(op.reverse)
def reverse(x, axis):
    return fresh(x.flip(axis))


@dialect.kernel(op.flip)
def flip(x, axes):
    return fresh(x.flip(axes))


def _per_batch(lengths, ndim, batch_axis):
    """Return lengths as int64 in a shape that broadcasts along the other axes."""
    shape = [1] * ndim
    shape[batch_axis] = -1
    return lengths.long().reshape(shape)


def _positions(x, axis):
    shape = [1] * x.ndim
    shape[axis] = -1
    return torch.arange(x.shape[axis], device=x.device).reshape(shape)


@dialect.kernel(op.reverse_sequence)
def reverse_sequence(x, sequence_length, seq_axis, batch_axis):
    place = _positions(x, seq_axis)
    length = _per_batch(sequence_length, x.ndim, batch_axis).clamp(max=x.shape[seq_axis])
    source = torch.where(place < length, length - 1 - place, place)
    return fresh(x.gather(seq_axis, source.expand(x.shape)))


@dialect.kernel(op.sequence_mask)
def sequence_mask(x, sequence_length, mask_value, axis, out):
    at = axis % x.ndim
    kept = _positions(x, at) < _per_batch(sequence_length, x.ndim, 1 - at)
    fill(mask_value, out)
    torch.where(kept, x, out.clone(), out=out)


@dialect.kernel(op.roll)
def roll(x, shift, axis):
    shifts = roll_shifts(shift, axis, x.ndim)
    source = x.reshape(-1) if axis is None else x
    moved = source.roll(tuple(shifts.values()), tuple(shifts)) if shifts else source
    return fresh(moved.reshape(x.shape))


@dialect.kernel(op.tile)
def tile(x, reps):
    counts, extents = tile_counts(tuple(x.shape), reps)
    return fresh(x.reshape(extents).repeat(counts))


@dialect.kernel(op.mesh_grid)
def mesh_grid(x):
    return tuple(map(fresh, torch.meshgrid(*x, indexing="ij")))


@dialect.kernel(op.triu)
def triu(x, k):
    return torch.triu(x, k).contiguous()


@dialect.kernel(op.tril)
def tril(x, k):
    return torch.tril(x, k).contiguous()


@dialect.kernel(op.diagonal)
def diagonal(x, offset, axis1, axis2):
    return fresh(x.diagonal(offset, axis1, axis2))


@dialect.kernel(op.diagonal_dx)
def diagonal_dx(dy, offset, axis1, axis2, out):
    out.zero_().diagonal(offset, axis1, axis2).copy_(dy)


# In NCHW, a channel is (i, j, c) or (c, i, j) and a place is (h, i, w, j).
@dialect.kernel(op.depth_to_space)
def depth_to_space(x, block_size, layout, mode):
    x = x if layout == "NCHW" else x.permute(0, 3, 1, 2)
    n, c, h, w = x.shape
    b, c = block_size, c // block_size**2
    if mode == "DCR":
        y = x.reshape(n, b, b, c, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        y = x.reshape(n, c, b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return _laid_out(y.reshape(n, c, h * b, w * b), layout)


@dialect.kernel(op.space_to_depth)
def space_to_depth(x, block_size, layout, mode):
    x = x if layout == "NCHW" else x.permute(0, 3, 1, 2)
    b, (n, c, h, w) = block_size, x.shape
    y = x.reshape(n, c, h // b, b, w // b, b)
    y = y.permute(0, 3, 5, 1, 2, 4) if mode == "DCR" else y.permute(0, 1, 3, 5, 2, 4)
    return _laid_out(y.reshape(n, c * b * b, h // b, w // b), layout)


def _laid_out(y, layout):
    return fresh(y if layout == "NCHW" else y.permute(0, 2, 3, 1))
