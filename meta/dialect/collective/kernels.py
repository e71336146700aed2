"""Kernels of collectives: how operators that name axes become exchanges of compact tensors.

A group exchanges tensors that have an axis of ranks first; other axes are moved there and back.

Kernels of collectives on several tensors at once, and of those that go on beside other work.

What was started is noted at the mesh of the rank, by the address of its first tensor, until
somebody waits for it.
"""

from contextlib import nullcontext
from typing import Any

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


def lists_reducible(call):
    """Return why a call that reduces several tensors is declined, or None."""
    dtype = call.args.x[0].dtype
    known = getattr(torch, dtype) in KNOWN
    return shared(call) if known else f"the libraries do not reduce {dtype}"


def rows(tensors, align):
    """Return tensors in flat pieces: those that lie one behind the other as one, what is between
    them included. See `meta.op.multi_tensor_all_reduce`. The pieces are the same on all ranks, as
    the plan of a program's memory is; where nobody planned (align 1) each tensor is one.
    """
    found: list[list[Any]] = []
    for one in tensors:
        memory, begin = one.untyped_storage().data_ptr(), one.data_ptr()
        for row in found:
            if align > 1 and row[0] == memory and -(-row[2] // align) * align == begin:
                row[2] = begin + one.nbytes
                break
        else:
            found.append([memory, one, begin + one.nbytes])
    return [_flat(first, (end - first.data_ptr()) // first.itemsize) for _, first, end in found]


def _flat(first, count):
    """Return so many elements from the first one of a compact tensor on."""
    row = torch.empty(0, dtype=first.dtype, device=first.device)
    return row.set_(first.untyped_storage(), first.storage_offset(), (count,), (1,))


def _all_reduce(tensors, group, reduction, align):
    """Reduce compact tensors with elements, in place, by one exchange."""
    pieces = rows(tensors, align)
    with group.together() if len(pieces) > 1 else nullcontext():
        for one in pieces:
            group.all_reduce(one, reduction)


def _with_elements(tensors):
    return [one for one in tensors if one.numel()]


@kernel(op.multi_tensor_all_reduce, lists_reducible)
def multi_tensor_all_reduce(x, over, size, reduction, align):
    group, tensors = current_mesh().group(over, size), _with_elements(x)
    if tensors:
        _all_reduce(tensors, group, reduction, align)


@kernel(op.multi_tensor_all_reduce_start, lists_reducible)
def multi_tensor_all_reduce_start(x, over, size, reduction, align):
    group, tensors = current_mesh().group(over, size), _with_elements(x)
    if tensors:
        _start(group, lambda: _all_reduce(tensors, group, reduction, align), tensors)


@kernel(op.all_gather_start)
def all_gather_start(x, over, size, axis, out):
    if out.numel():
        group = current_mesh().group(over, size)
        _start(group, lambda: all_gather(x, over, size, axis, out), [out])


@kernel(op.reduce_scatter_start, reducible)
def reduce_scatter_start(x, over, size, reduction, axis, out):
    if out.numel():
        group = current_mesh().group(over, size)
        _start(group, lambda: reduce_scatter(x, over, size, reduction, axis, out), [out])


def _gather_all(group, x, out):
    with group.together():
        for one, whole in zip(x, out, strict=True):
            if one.numel():
                group.all_gather(as_bytes(whole.view(group.size, *one.shape)), as_bytes(one))


def _gather_in_place(group, tensors):
    with group.together():
        for one in tensors:
            parts = one.view(group.size, -1)
            own = parts[group.rank]
            # NCCL lets what is given be its place in the result; others need not.
            given = own if one.is_cuda else own.clone()
            group.all_gather(as_bytes(parts), as_bytes(given))


def _reduce_all(group, x, reduction, out):
    with group.together():
        for one, part in zip(x, out, strict=True):
            if one.numel():
                group.reduce_scatter(part, one.view(group.size, *part.shape), reduction)


@kernel(op.multi_tensor_all_gather)
def multi_tensor_all_gather(x, over, size, out):
    _gather_all(current_mesh().group(over, size), x, out)


@kernel(op.multi_tensor_all_gather_in_place)
def multi_tensor_all_gather_in_place(x, over, size):
    _gather_in_place(current_mesh().group(over, size), _with_elements(x))


@kernel(op.multi_tensor_all_gather_in_place_start)
def multi_tensor_all_gather_in_place_start(x, over, size):
    group, tensors = current_mesh().group(over, size), _with_elements(x)
    if tensors:
        _start(group, lambda: _gather_in_place(group, tensors), tensors)


@kernel(op.multi_tensor_reduce_scatter, lists_reducible)
def multi_tensor_reduce_scatter(x, over, size, reduction, out):
    _reduce_all(current_mesh().group(over, size), x, reduction, out)


@kernel(op.multi_tensor_all_gather_start)
def multi_tensor_all_gather_start(x, over, size, out):
    group, written = current_mesh().group(over, size), _with_elements(out)
    if written:
        _start(group, lambda: _gather_all(group, x, out), written)


@kernel(op.multi_tensor_reduce_scatter_start, lists_reducible)
def multi_tensor_reduce_scatter_start(x, over, size, reduction, out):
    group, written = current_mesh().group(over, size), _with_elements(out)
    if written:
        _start(group, lambda: _reduce_all(group, x, reduction, out), written)


def _start(group, run, written):
    current_mesh().pending[written[0].data_ptr()] = group.start(run, written)


@kernel(op.collective_wait)
def collective_wait(x, over, size):
    tensors = _with_elements(x)
    if tensors:
        current_mesh().finish(tensors[0].data_ptr())
