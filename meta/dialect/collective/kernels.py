"""Kernels of collectives: how operators that name axes become exchanges of compact tensors.

A group exchanges tensors that have an axis of ranks first; other axes are moved there and back.
"""

import torch

from meta import op
from meta.dialect.collective import gloo, nccl
from meta.runtime.mesh import current_mesh

KNOWN = {
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.int8, torch.uint8, torch.int32, torch.int64),
}
"""The dtypes that both libraries have; others are moved as bytes, and not reduced."""


def shared(call):
    """Return why a call is declined, or None."""
    return "there is no other rank" if call.args.size == 1 else None


def reducible(call):
    """Return why a call that reduces is declined, or None."""
    dtype = call.args.x.dtype
    known = getattr(torch, dtype) in KNOWN
    return shared(call) if known else f"the libraries do not reduce {dtype}"


def kernel(base, when=shared):
    """Register a function on both dialects."""

    def register(function):
        for dialect in (gloo, nccl):
            dialect.kernel(base, strided=False, when=when)(function)
        return function

    return register


def as_bytes(x):
    """Return a tensor that is only moved as one of a dtype that the libraries know."""
    return x if x.dtype in KNOWN else (x if x.ndim else x[None]).view(torch.uint8)


def _joined(parts, axis, out):
    """Write parts, [ranks, ...], one after the other along an axis of out."""
    out.copy_(parts.movedim(0, axis).reshape(out.shape))


def _cut(x, size, axis):
    """Return the parts of x along an axis: [ranks, ...], compact."""
    at = axis % x.ndim
    shape = (*x.shape[:at], size, x.shape[at] // size, *x.shape[at + 1 :])
    return x.reshape(shape).movedim(at, 0).contiguous()


def group_of(over, size):
    return current_mesh().group(over, size)


@kernel(op.all_reduce, reducible)
def all_reduce(x, over, size, reduction, out):
    out.copy_(x)
    group_of(over, size).all_reduce(out, reduction)


@kernel(op.reduce_from, reducible)
def reduce_from(x, over, size, out):
    all_reduce(x, over, size, "sum", out)


@kernel(op.all_gather)
def all_gather(x, over, size, axis, out):
    if axis % x.ndim == 0:  # the ranks' parts lie one behind the other
        group_of(over, size).all_gather(as_bytes(out.view(size, *x.shape)), as_bytes(x))
        return
    parts = x.new_empty((size, *x.shape))
    group_of(over, size).all_gather(as_bytes(parts), as_bytes(x))
    _joined(parts, axis % x.ndim, out)


@kernel(op.gather_from)
def gather_from(x, over, size, axis, out):
    all_gather(x, over, size, axis, out)


@kernel(op.scatter_to)
def scatter_to(x, over, size, axis, out):
    extent = out.shape[axis]
    out.copy_(x.narrow(axis, group_of(over, size).rank * extent, extent))


@kernel(op.reduce_scatter, reducible)
def reduce_scatter(x, over, size, reduction, axis, out):
    parts = _cut(x, size, axis)
    group_of(over, size).reduce_scatter(out, parts, reduction)


@kernel(op.all_to_all)
def all_to_all(x, over, size, split_axis, concat_axis, out):
    given = _cut(x, size, split_axis)
    parts = torch.empty_like(given)
    group_of(over, size).all_to_all(as_bytes(parts), as_bytes(given))
    _joined(parts, concat_axis % x.ndim, out)


@kernel(op.broadcast_from)
def broadcast_from(x, over, size, root, out):
    out.copy_(x)
    group_of(over, size).broadcast(as_bytes(out), root)


@kernel(op.reduce_to, reducible)
def reduce_to(x, over, size, reduction, root, out):
    all_reduce(x, over, size, reduction, out)
    if group_of(over, size).rank != root:
        out.zero_()


@kernel(op.gather_to)
def gather_to(x, over, size, axis, root, out):
    all_gather(x, over, size, axis, out)
    if group_of(over, size).rank != root:
        as_bytes(out).zero_()


@kernel(op.scatter_from)
def scatter_from(x, over, size, axis, root, out):
    group, parts = group_of(over, size), _cut(x, size, axis)
    group.broadcast(as_bytes(parts), root)
    out.copy_(parts[group.rank])


@kernel(op.send_recv)
def send_recv(x, over, size, sources, targets, out):
    one = isinstance(sources, int)
    pairs = [(sources, targets)] if one else list(zip(sources, targets, strict=True))
    as_bytes(out).zero_()
    group_of(over, size).send(as_bytes(out), as_bytes(x), pairs)


@kernel(op.axis_index)
def axis_index(over, size, out):
    out.fill_(group_of(over, size).rank)
