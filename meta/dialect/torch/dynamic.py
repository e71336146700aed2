"""Operators whose result's shape depends on data on ATen.

A kernel reads the values, which on a GPU waits for them, and checks them by the type function of
the operator whose attributes they are.
"""

import torch

from meta import op
from meta.base.dtype import FROM_TORCH, TO_TORCH, prepare_cast
from meta.base.errors import IndexOutOfRange
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.creation import one_hot
from meta.dialect.torch.movement import inner, repeated, strided_slice, tile
from meta.dialect.torch.resize import resize
from meta.dialect.torch.shapes import fresh, reversed_axes, sliced
from meta.dialect.torch.sorting import topk
from meta.ir.types import TensorType
from meta.op.core.check import require
from meta.op.core.slicing import slice_ranges
from meta.op.core.window import pad_pairs


@dialect.kernel(op.argwhere)
def argwhere(condition):
    return torch.argwhere(condition != 0).contiguous()


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
    return tuple(i.contiguous() for i in torch.nonzero(x != 0, as_tuple=True))


@dialect.kernel(op.unique)
def unique(x, return_inverse, return_counts):
    if not x.is_complex():
        return torch.unique(x, True, return_inverse, return_counts)
    flat = x.reshape(-1)
    order = torch.argsort(flat.imag, stable=True)
    order = order[torch.argsort(flat.real[order], stable=True)]
    ranked = flat[order]
    begins = torch.ones(len(flat), dtype=torch.bool, device=x.device)
    begins[1:] = ranked[1:] != ranked[:-1]
    group = begins.cumsum(0) - 1
    found = [ranked[begins]]
    if return_inverse:
        found.append(torch.empty_like(group).index_put_((order,), group).reshape(x.shape))
    if return_counts:
        found.append(torch.bincount(group))
    return tuple(found) if len(found) > 1 else found[0]


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


def _type(x):
    return TensorType(tuple(x.shape), FROM_TORCH[x.dtype])


def _ints(x):
    """Return the integers that a tensor holds, flat."""
    return tuple(x.reshape(-1).tolist())


def _reshaped(x, base, *how):
    """Return a copy of x in the shape that an operator gives it."""
    return fresh(x.reshape(base.type_function(_type(x), *how).static_shape))


@dialect.kernel(op.dynamic_reshape)
def dynamic_reshape(x, shape):
    return _reshaped(x, op.reshape, _ints(shape))


@dialect.kernel(op.dynamic_squeeze)
def dynamic_squeeze(x, axes):
    return _reshaped(x, op.squeeze, _ints(axes))


@dialect.kernel(op.dynamic_expand_dims)
def dynamic_expand_dims(x, axis, num_newaxis):
    return _reshaped(x, op.expand_dims, axis.item(), num_newaxis)


@dialect.kernel(op.dynamic_broadcast_to)
def dynamic_broadcast_to(x, shape):
    extents = op.broadcast_to.type_function(_type(x), _ints(shape)).static_shape
    return fresh(x.expand(extents))


@dialect.kernel(op.dynamic_full)
def dynamic_full(fill_value, shape, dtype):
    extents = op.zeros.type_function(_ints(shape), dtype, "cpu").static_shape
    wanted = TO_TORCH[dtype]
    return fresh(prepare_cast(fill_value.reshape(()), wanted).to(wanted).expand(extents))


@dialect.kernel(op.dynamic_arange)
def dynamic_arange(start, stop, step, dtype):
    numbers = [x.item() for x in (start, stop, step)]
    count = op.arange.type_function(*numbers, dtype, "cpu").static_shape[0]
    exact = torch.int64 if all(isinstance(n, int) for n in numbers) else torch.float64
    places = torch.arange(count, dtype=exact, device=start.device)
    return (numbers[0] + places * numbers[2]).to(TO_TORCH[dtype])


@dialect.kernel(op.dynamic_strided_slice)
def dynamic_strided_slice(x, begin, end, strides, slice_mode):
    return strided_slice(x, _ints(begin), _ints(end), _ints(strides), slice_mode)


@dialect.kernel(op.dynamic_strided_slice_dx)
def dynamic_strided_slice_dx(x, dy, begin, end, strides, slice_mode):
    full = torch.zeros(x.shape, dtype=dy.dtype, device=dy.device)
    ranges = slice_ranges(tuple(x.shape), _ints(begin), _ints(end), _ints(strides), slice_mode)
    part = sliced(full, ranges)
    require(part.shape == dy.shape, "dy has another shape than the slice", expected=part.shape)
    part.copy_(dy.flip(reversed_axes(ranges)))
    return full


@dialect.kernel(op.dynamic_topk)
def dynamic_topk(x, k, axis, largest, ret_type, dtype):
    count = k.item() if k.item() >= 1 else x.shape[axis]
    op.topk.type_function(_type(x), count, axis, largest, ret_type, dtype)
    return topk(x, count, axis, largest, ret_type, dtype)


@dialect.kernel(op.dynamic_one_hot)
def dynamic_one_hot(indices, on_value, off_value, depth, axis, dtype, call):
    op.one_hot.type_function(_type(indices), depth.item(), 1, 0, axis, dtype, "cpu")
    return one_hot(indices, depth.item(), on_value, off_value, axis, call)


@dialect.kernel(op.dynamic_tile)
def dynamic_tile(x, reps):
    op.tile.type_function(_type(x), _ints(reps))
    return tile(x, _ints(reps))


@dialect.kernel(op.dynamic_pad)
def dynamic_pad(x, pad_width, pad_value, pad_mode):
    widths = _ints(pad_width)
    extents = op.pad.type_function(_type(x), widths, 0, pad_mode).static_shape
    pairs = pad_pairs(widths, x.ndim)
    if pad_mode != "constant":
        return fresh(repeated(x, pairs, pad_mode))
    given = torch.as_tensor(pad_value, device=x.device).reshape(())
    value = prepare_cast(given, x.dtype).to(x.dtype)
    padded = fresh(value.expand(extents))
    inner(padded, pairs, x.shape).copy_(x)
    return padded


@dialect.kernel(op.dynamic_resize2d)
def dynamic_resize2d(x, size, call):
    return resize(x, _ints(size), call)
