"""Indexing by several tensors on ATen."""

import torch

from meta import op
from meta.dialect import LIBRARY
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import wide
from meta.dialect.torch.transform import in_range


def _places(indices, x):
    """Return the indices as int64, counted from the start."""
    return tuple(in_range(i, n, "raise") for i, n in zip(indices, x.shape, strict=False))


@dialect.kernel(op.adv_index)
def adv_index(inputs):
    x, *indices = inputs
    if not indices:
        return x.clone(memory_format=torch.contiguous_format)
    # Not x[...]: with indices without axes, that is a view.
    return torch.ops.aten.index(x, _places(indices, x)).contiguous()


# Generated code would look every index up for every element; ATen scatters.
@dialect.kernel(op.adv_index_dx, plevel=LIBRARY)
def adv_index_dx(dy, inputs):
    x, *indices = inputs
    if not indices:
        return dy.to(x.dtype, copy=True, memory_format=torch.contiguous_format)
    total = torch.zeros(x.shape, dtype=wide(dy.dtype), device=dy.device)
    return total.index_put_(_places(indices, x), dy.to(total.dtype), accumulate=True).to(x.dtype)
