"""Kernels of collectives on several tensors at once, and of those that go on beside other work.

What was started is noted at the mesh of the rank, by the address of its first tensor, until
somebody waits for it.
"""

from contextlib import nullcontext
from typing import Any

import torch

from meta import op
from meta.dialect.collective.kernels import (
    KNOWN,
    all_gather,
    as_bytes,
    kernel,
    reduce_scatter,
    reducible,
    shared,
)
from meta.runtime.mesh import current_mesh


def _reducible(call):
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


@kernel(op.multi_tensor_all_reduce, _reducible)
def multi_tensor_all_reduce(x, over, size, reduction, align):
    group, tensors = current_mesh().group(over, size), _with_elements(x)
    if tensors:
        _all_reduce(tensors, group, reduction, align)


@kernel(op.multi_tensor_all_reduce_start, _reducible)
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


def _gather_each(group, x, out):
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


def _reduce_each(group, x, reduction, out):
    with group.together():
        for one, part in zip(x, out, strict=True):
            if one.numel():
                group.reduce_scatter(part, one.view(group.size, *part.shape), reduction)


@kernel(op.multi_tensor_all_gather)
def multi_tensor_all_gather(x, over, size, out):
    _gather_each(current_mesh().group(over, size), x, out)


@kernel(op.multi_tensor_all_gather_in_place)
def multi_tensor_all_gather_in_place(x, over, size):
    _gather_in_place(current_mesh().group(over, size), _with_elements(x))


@kernel(op.multi_tensor_all_gather_in_place_start)
def multi_tensor_all_gather_in_place_start(x, over, size):
    group, tensors = current_mesh().group(over, size), _with_elements(x)
    if tensors:
        _start(group, lambda: _gather_in_place(group, tensors), tensors)


@kernel(op.multi_tensor_reduce_scatter, _reducible)
def multi_tensor_reduce_scatter(x, over, size, reduction, out):
    _reduce_each(current_mesh().group(over, size), x, reduction, out)


@kernel(op.multi_tensor_all_gather_start)
def multi_tensor_all_gather_start(x, over, size, out):
    group, written = current_mesh().group(over, size), _with_elements(out)
    if written:
        _start(group, lambda: _gather_each(group, x, out), written)


@kernel(op.multi_tensor_reduce_scatter_start, _reducible)
def multi_tensor_reduce_scatter_start(x, over, size, reduction, out):
    group, written = current_mesh().group(over, size), _with_elements(out)
    if written:
        _start(group, lambda: _reduce_each(group, x, reduction, out), written)


def _start(group, run, written):
    current_mesh().pending[written[0].data_ptr()] = group.start(run, written)


@kernel(op.collective_wait)
def collective_wait(x, over, size):
    tensors = _with_elements(x)
    if tensors:
        current_mesh().finish(tensors[0].data_ptr())
