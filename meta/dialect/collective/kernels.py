"""Kernels of collectives: how operators that name axes become exchanges of compact tensors.

A group exchanges tensors that have an axis of ranks first; other axes are moved there and back.
"""

import torch

from meta import op
from meta.dialect.collective import gloo, nccl
from meta.runtime.world import current

KNOWN = {
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.int8, torch.uint8, torch.int32, torch.int64),
}
"""The dtypes that both libraries have; others are moved as bytes, and not reduced."""


def _reducible(call):
    """Return why a call is declined, or None."""
    dtype = call.args.x.dtype
    return None if getattr(torch, dtype) in KNOWN else f"the libraries do not reduce {dtype}"


def _kernel(base, **options):
    """Register a function on both dialects."""

    def register(function):
        for dialect in (gloo, nccl):
            dialect.kernel(base, **options)(function)
        return function

    return register


def _group(over, size):
    """Return the group along an axis; None if there is nobody else."""
    return None if size == 1 else current().group(over, size)


def _bytes(x):
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


def _reduced(group, out, reduction):
    if reduction != "mean":
        return group.all_reduce(out, reduction)
    group.all_reduce(out, "sum")
    out.div_(group.size)


@_kernel(op.all_reduce, strided=False, when=_reducible)
def all_reduce(x, over, size, reduction, out):
    group = _group(over, size)
    out.copy_(x)
    if group is not None:
        _reduced(group, out, reduction)


@_kernel(op.reduce_from, strided=False, when=_reducible)
def reduce_from(x, over, size, out):
    all_reduce(x, over, size, "sum", out)


@_kernel(op.all_gather, strided=False)
def all_gather(x, over, size, axis, out):
    group = _group(over, size)
    if group is None:
        out.copy_(x)
        return
    parts = x.new_empty((size, *x.shape))
    group.all_gather(_bytes(parts), _bytes(x))
    _joined(parts, axis % x.ndim, out)


@_kernel(op.reduce_scatter, strided=False, when=_reducible)
def reduce_scatter(x, over, size, reduction, axis, out):
    group = _group(over, size)
    if group is None:
        out.copy_(x)
        return
    group.reduce_scatter(out, _cut(x, size, axis), "sum" if reduction == "mean" else reduction)
    if reduction == "mean":
        out.div_(size)


@_kernel(op.all_to_all, strided=False)
def all_to_all(x, over, size, split_axis, concat_axis, out):
    group = _group(over, size)
    if group is None:
        out.copy_(x)
        return
    given = _cut(x, size, split_axis)
    parts = torch.empty_like(given)
    group.all_to_all(_bytes(parts), _bytes(given))
    _joined(parts, concat_axis % x.ndim, out)


@_kernel(op.broadcast_from, strided=False)
def broadcast_from(x, over, size, root, out):
    group = _group(over, size)
    out.copy_(x)
    if group is not None:
        group.broadcast(_bytes(out), root)


@_kernel(op.reduce_to, strided=False, when=_reducible)
def reduce_to(x, over, size, reduction, root, out):
    group = _group(over, size)
    all_reduce(x, over, size, reduction, out)
    if group is not None and group.rank != root:
        out.zero_()


@_kernel(op.gather_to, strided=False)
def gather_to(x, over, size, axis, root, out):
    group = _group(over, size)
    all_gather(x, over, size, axis, out)
    if group is not None and group.rank != root:
        _bytes(out).zero_()


@_kernel(op.scatter_from, strided=False)
def scatter_from(x, over, size, axis, root, out):
    group = _group(over, size)
    if group is None:
        out.copy_(x)
        return
    parts = _cut(x, size, axis)
    group.broadcast(_bytes(parts), root)
    out.copy_(parts[group.rank])


@_kernel(op.send_recv, strided=False)
def send_recv(x, over, size, sources, targets, out):
    one = isinstance(sources, int)
    pairs = [(sources, targets)] if one else list(zip(sources, targets, strict=True))
    group = _group(over, size)
    _bytes(out).zero_()
    if group is not None:
        group.send(_bytes(out), _bytes(x), pairs)
    elif pairs:
        out.copy_(x)


@_kernel(op.axis_index)
def axis_index(over, size, out):
    group = _group(over, size)
    out.fill_(0 if group is None else group.rank)
