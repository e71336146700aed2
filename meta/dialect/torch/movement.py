"""Operators that join, split, slice, pad and rearrange on ATen."""

import torch

from meta import op
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.creation import fill
from meta.dialect.torch.operands import kernels, wide
from meta.dialect.torch.shapes import fresh, reversed_axes, sliced
from meta.op.core.check import normalize_axes
from meta.op.core.slicing import slice_ranges
from meta.op.core.window import pad_pairs, source_index
from meta.op.movement import roll_shifts, tile_counts
from meta.op.shapes import split_bounds


def _joined(arrays, axis):
    if axis is None:
        return torch.cat([x.reshape(-1) for x in arrays])
    return torch.cat(arrays, axis)


kernels(
    {
        op.flip: lambda x, axis: fresh(x.flip(normalize_axes(axis, x.ndim))),
        op.triu: lambda x, k: torch.triu(x, k).contiguous(),
        op.tril: lambda x, k: torch.tril(x, k).contiguous(),
        op.diagonal: lambda x, offset, axis1, axis2: fresh(x.diagonal(offset, axis1, axis2)),
        op.concat: _joined,
        op.stack: lambda arrays, axis: torch.stack(arrays, axis),
    }
)


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


def _source(before, after, extent, mode, device):
    """Return which element of an axis each place of the padded axis reads."""
    place = torch.arange(-before, extent + after, device=device)

    def least(a, b):
        return a.minimum(torch.as_tensor(b, device=device))

    def largest(a, b):
        return a.maximum(torch.as_tensor(b, device=device))

    return source_index(place, extent, mode, least, largest)


@dialect.kernel(op.pad)
def pad(x, pad_width, pad_value, pad_mode, out):
    pairs = pad_pairs(pad_width, x.ndim)
    if pad_mode != "constant":
        out.copy_(repeated(x, pairs, pad_mode))
        return
    fill(pad_value, out)
    inner(out, pairs, x.shape).copy_(x)


def inner(padded, pairs, shape):
    """Return what is not padding, a view."""
    for axis, ((before, _), extent) in enumerate(zip(pairs, shape, strict=True)):
        padded = padded.narrow(axis, before, extent)
    return padded


def repeated(x, pairs, mode):
    """Return ``x`` with its own elements around it."""
    for axis, (before, after) in enumerate(pairs):
        if before or after:
            x = x.index_select(axis, _source(before, after, x.shape[axis], mode, x.device))
    return x


@dialect.kernel(op.pad_dx)
def pad_dx(dy, pad_width, pad_mode, out):
    pairs = pad_pairs(pad_width, dy.ndim)
    if pad_mode == "constant":
        out.copy_(inner(dy, pairs, out.shape))
        return
    total = dy.to(wide(dy.dtype)) if dy.dtype.is_floating_point else dy
    for axis, (pair, extent) in enumerate(zip(pairs, out.shape, strict=True)):
        if any(pair):
            shape = (*total.shape[:axis], extent, *total.shape[axis + 1 :])
            source = _source(*pair, extent, pad_mode, dy.device)
            total = total.new_zeros(shape).index_add_(axis, source, total)
    out.copy_(total)


@dialect.kernel(op.strided_set)
def strided_set(data, v, begin, end, strides, out):
    ranges = slice_ranges(data.shape, begin, end, strides, "end")
    out.copy_(data)
    sliced(out, ranges).copy_(v.flip(reversed_axes(ranges)))


@dialect.kernel(op.split)
def split(x, indices_or_sections, axis):
    bounds = split_bounds(x.shape[axis], indices_or_sections)
    return tuple(fresh(x.narrow(axis, begin, end - begin)) for begin, end in bounds)


@dialect.kernel(op.strided_slice)
def strided_slice(x, begin, end, strides, slice_mode):
    ranges = slice_ranges(x.shape, begin, end, strides, slice_mode)
    backward = reversed_axes(ranges)
    part = sliced(x, ranges)
    if not backward:
        return fresh(part)
    if part.dtype.itemsize == 1:  # ATen reverses bytes, but not those of float8
        return part.view(torch.uint8).flip(backward).contiguous().view(x.dtype)
    return part.flip(backward).contiguous()


@dialect.kernel(op.strided_slice_dx)
def strided_slice_dx(dy, shape, begin, end, strides, slice_mode, call):
    full = torch.zeros(call.out.shape, dtype=dy.dtype, device=dy.device)
    ranges = slice_ranges(full.shape, begin, end, strides, slice_mode)
    sliced(full, ranges).copy_(dy.flip(reversed_axes(ranges)))
    return full


@dialect.kernel(op.repeat)
def repeat(x, repeats, axis):
    source = x.reshape(-1) if axis is None else x
    return source.repeat_interleave(repeats, dim=axis or 0).contiguous()


@dialect.kernel(op.repeat_dx)
def repeat_dx(x, dy, repeats, axis):
    shape = (x.numel(),) if axis is None else tuple(x.shape)
    at = 0 if axis is None else axis % x.ndim
    parts = dy.reshape(*shape[: at + 1], repeats, *shape[at + 1 :])
    return parts.sum(at + 1, dtype=wide(x.dtype)).to(x.dtype).reshape(x.shape)
