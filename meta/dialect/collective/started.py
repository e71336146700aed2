"""Kernels of collectives on several tensors at once, and of those that go on beside other work.

What was started is noted at the world of the rank, by the address of its first tensor, until
somebody waits for it.
"""

import torch

from meta import op
from meta.dialect.collective.kernels import KNOWN, kernel, shared
from meta.runtime.world import current


def _reducible(call):
    """Return why a call that reduces several tensors is declined, or None."""
    dtype = call.args.x[0].dtype
    known = getattr(torch, dtype) in KNOWN
    return shared(call) if known else f"the libraries do not reduce {dtype}"


def in_a_row(tensors, align):
    """Return tensors that lie one behind the other as one, what is between them included; None for
    others. See `meta.op.multi_tensor_all_reduce`.
    """
    first = tensors[0]
    storage = first.untyped_storage()
    end = first.data_ptr()
    for one in tensors:
        begin = -(-end // align) * align
        if one.data_ptr() != begin or one.untyped_storage().data_ptr() != storage.data_ptr():
            return None
        end = begin + one.nbytes
    count = (end - first.data_ptr()) // first.itemsize
    row = torch.empty(0, dtype=first.dtype, device=first.device)
    return row.set_(storage, first.storage_offset(), (count,), (1,))


def _all_reduce(tensors, group, reduction, align):
    """Reduce compact tensors with elements, in place, by one exchange."""
    row = in_a_row(tensors, align)
    whole = torch.cat([one.reshape(-1) for one in tensors]) if row is None else row
    group.all_reduce(whole, reduction)
    if row is None:
        parts = whole.split([one.numel() for one in tensors])
        torch._foreach_copy_([one.view(-1) for one in tensors], list(parts))


def _with_elements(tensors):
    return [one for one in tensors if one.numel()]


@kernel(op.multi_tensor_all_reduce, _reducible)
def multi_tensor_all_reduce(x, over, size, reduction, align):
    group, tensors = current().group(over, size), _with_elements(x)
    if tensors:
        _all_reduce(tensors, group, reduction, align)


@kernel(op.multi_tensor_all_reduce_start, _reducible)
def multi_tensor_all_reduce_start(x, over, size, reduction, align):
    world, tensors = current(), _with_elements(x)
    if tensors:
        group = world.group(over, size)
        world.pending[tensors[0].data_ptr()] = group.start(
            lambda: _all_reduce(tensors, group, reduction, align), tensors
        )


@kernel(op.collective_wait)
def collective_wait(x, over, size):
    tensors = _with_elements(x)
    if tensors:
        current().finish(tensors[0].data_ptr())
