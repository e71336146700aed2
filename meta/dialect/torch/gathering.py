"""Operators that read and write at indices on ATen.

What writes is LIBRARY: generated code would look all indices up for every element. The gradient of
`take_along_axis`, [2048, 2048] in float32, on an H200, 2026-11-22: 86 us, generated 6617; the
operator itself 43 and 21.
"""

import torch

from meta import op
from meta.dialect import LIBRARY
from meta.dialect.core.kernel_signature import bind_kernel
from meta.dialect.core.openv import OpEnv
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import HALF, wide


@dialect.kernel(op.take_along_axis)
def take_along_axis(x, indices, axis):
    return torch.gather(x, axis, in_range(indices, x.shape[axis], "raise"))


def _scatter_add(x, places, src, axis):
    dtype = wide(x.dtype)
    if dtype == torch.bool:  # of which a sum is "or"
        sums = x.to(torch.int32).scatter_add_(axis, places, src.to(torch.int32))
        return sums != 0
    return x.to(dtype).scatter_add(axis, places, src.to(dtype)).to(x.dtype)


@dialect.kernel(op.take_along_axis_dx, plevel=LIBRARY)
def take_along_axis_dx(x, dy, indices, axis):
    zeros = torch.zeros_like(x, memory_format=torch.contiguous_format)
    return _scatter_add(zeros, in_range(indices, x.shape[axis], "raise"), dy, axis)


def _flat_positions(data, indices):
    """Return the row-major positions, among the leading axes, of coordinates; flattened."""
    places = torch.zeros(indices.shape[1:], dtype=torch.int64, device=indices.device)
    for extent, index in zip(data.shape, indices, strict=False):
        places = places * extent + in_range(index, extent, "clip")
    return places.reshape(-1)


def _rows(data, depth):
    """Return a tensor with its leading axes joined; there may be none, or no element."""
    count = data.shape[:depth].numel()
    return data.reshape(count, *data.shape[depth:])


@dialect.kernel(op.gather_nd)
def gather_nd(data, indices, call):
    rows = _rows(data, indices.shape[0])
    return rows.index_select(0, _flat_positions(data, indices)).reshape(call.out.shape)


def _add_nd(data, indices, updates):
    dtype = wide(data.dtype)
    depth, places = indices.shape[0], _flat_positions(data, indices)
    parts = updates.reshape(places.numel(), *data.shape[depth:]).to(dtype)
    # A copy: in the same dtype `to` gives the argument itself.
    sums = _rows(data, depth).to(dtype, copy=True).index_add_(0, places, parts)
    return sums.to(data.dtype).reshape(data.shape)


@dialect.kernel(op.gather_nd_dx, plevel=LIBRARY)
def gather_nd_dx(data, indices, dy):
    zeros = torch.zeros_like(data, memory_format=torch.contiguous_format)
    return _add_nd(zeros, indices, dy)


@dialect.kernel(op.index_select)
def index_select(x, axis, index):
    return x.index_select(axis, in_range(index, x.shape[axis], "raise"))


@dialect.kernel(op.scatter, plevel=LIBRARY)
def scatter(x, index, src, axis):
    return x.contiguous().scatter(axis, in_range(index, x.shape[axis], "clip"), src)


@dialect.kernel(op.scatter_dx, plevel=LIBRARY)
def scatter_dx(dy, index, axis):
    return dy.contiguous().scatter(axis, in_range(index, dy.shape[axis], "clip"), 0)


@dialect.kernel(op.scatter_add, plevel=LIBRARY)
def scatter_add(x, index, src, axis):
    return _scatter_add(x.contiguous(), in_range(index, x.shape[axis], "clip"), src, axis)


@dialect.kernel(op.scatter_reduce, plevel=LIBRARY)
def scatter_reduce(x, index, src, axis, reduce):
    dtype = wide(x.dtype)
    places = in_range(index, x.shape[axis], "clip")
    src = src[tuple(slice(d) for d in index.shape)]
    return x.to(dtype).scatter_reduce(axis, places, src.to(dtype), reduce).to(x.dtype)


@dialect.kernel(op.scatter_nd, plevel=LIBRARY)
def scatter_nd(data, indices, updates, mode):
    if mode == "add":
        return _add_nd(data, indices, updates)
    depth, places = indices.shape[0], _flat_positions(data, indices)
    parts = updates.reshape(places.numel(), *data.shape[depth:])
    rows = _rows(data, depth).clone(memory_format=torch.contiguous_format)
    rows[places] = parts
    return rows.reshape(data.shape)


def assign_at(x, indices, value, axis):
    places = [in_range(i, n, "clip") for i, n in zip(indices, x.shape[axis:], strict=False)]
    torch.ops.aten.index_put_(x, [None] * axis + places, value)


@dialect.op(op.assign_at)
def _assign_at(call):
    axis, indices = call.args.axis, call.args.indices
    last = call.args.x.shape[axis] - 1
    is_row = indices.shape[0] == 1 and indices.ndim == 2 and indices.dtype == "int64"

    def rows(x, indices, value):  # in few steps of Python: a step of decoding has dozens of them
        x.index_copy_(axis, indices[0].clamp(0, last), value)

    fits = is_row and isinstance(last, int) and call.device.kind == "cpu"
    run = rows if fits else bind_kernel(assign_at, call)
    return OpEnv(run, allocates=False, strided=True)


def _positions(indices, x):
    """Return the indices as int64, counted from the start."""
    return tuple(in_range(i, n, "raise") for i, n in zip(indices, x.shape, strict=False))


@dialect.kernel(op.adv_index)
def adv_index(inputs):
    x, *indices = inputs
    if not indices:
        return x.clone(memory_format=torch.contiguous_format)
    # Not x[...]: with indices without axes, that is a view.
    return torch.ops.aten.index(x, _positions(indices, x)).contiguous()


# Generated code would look every index up for every element; ATen scatters.
@dialect.kernel(op.adv_index_dx, plevel=LIBRARY)
def adv_index_dx(dy, inputs):
    x, *indices = inputs
    if not indices:
        return dy.to(x.dtype, copy=True, memory_format=torch.contiguous_format)
    total = torch.zeros(x.shape, dtype=wide(dy.dtype), device=dy.device)
    return total.index_put_(_positions(indices, x), dy.to(total.dtype), accumulate=True).to(x.dtype)


def in_range(indices, extent, mode):
    """Return the indices as int64 within the extent, by the mode of `take`."""
    indices = indices.long()
    if mode == "wrap":
        return indices.remainder(max(extent, 1))
    if mode == "raise":
        indices = torch.where(indices < 0, indices + extent, indices)
    return indices.clamp(0, max(extent - 1, 0))


@dialect.kernel(op.take)
def take(x, indices, axis, mode, call):
    source = x.reshape(-1) if axis is None else x
    at = axis or 0
    picked = in_range(indices, source.shape[at], mode).reshape(-1)
    return source.index_select(at, picked).reshape(call.out.shape)


def _accumulated(dy, indices, shape, axis):
    """Return zeros of a shape with ``dy`` added up by index; half precision is added in float32."""
    full = torch.zeros(shape, dtype=wide(dy.dtype), device=dy.device)
    rows = dy.reshape(*shape[:axis], indices.numel(), *shape[axis + 1 :])
    return full.index_add_(axis, indices.reshape(-1), rows.to(full.dtype)).to(dy.dtype)


# Generated code would look every index up for every row; ATen scatters: 4761 and 33 us for 2048
# rows of 2048 in float32 on an H200, 2026-11-22.
@dialect.kernel(op.take_dx, plevel=LIBRARY)
def take_dx(x, dy, indices, axis, mode):
    shape = (x.numel(),) if axis is None else tuple(x.shape)
    at = 0 if axis is None else axis % x.ndim
    result = _accumulated(dy, in_range(indices, shape[at], mode), shape, at)
    return result.to(x.dtype).reshape(x.shape)


@dialect.kernel(op.embedding)
def embedding(x, indices, call):
    return take(x, indices, 0, "clip", call)


@dialect.kernel(op.embedding_dx, plevel=LIBRARY)
def embedding_dx(dy, indices, call):
    shape = call.out.shape
    places = in_range(indices, shape[0], "clip")
    fits = len(shape) == 2 and dy.numel() and not (dy.is_cuda or dy.dtype in HALF)
    if (
        fits and shape[0]
    ):  # in one step of ATen's, which takes less time than those of `_accumulated`
        return torch.ops.aten.embedding_dense_backward.default(dy, places, shape[0], -1, False)
    return _accumulated(dy, places, shape, 0)
