"""Following another tensor's shape or dtype on ATen. Results are fresh and compact."""

import torch

from meta import op
from meta.base.dtype import TO_TORCH, convertible
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import wide
from meta.dialect.torch.transform import broadcast_to, reshape
from meta.op.like import collapsed_axes

dialect.kernel(op.reshape_like)(reshape)
dialect.kernel(op.broadcast_to_like)(broadcast_to)


@dialect.kernel(op.collapse_sum_like)
def collapse_sum_like(x, out):
    axes = collapsed_axes(x.shape, out.shape)
    dtype = wide(x.dtype) if x.dtype.is_floating_point else torch.int64
    out.copy_(torch.sum(x, axes, dtype=dtype).reshape(out.shape) if axes else x.reshape(out.shape))


@dialect.kernel(op.cast_like)
def cast_like(x, out):
    out.copy_(convertible(x, out.dtype))


@dialect.kernel(op.group_cast)
def group_cast(tensor_list, dtype):
    compact = {"copy": True, "memory_format": torch.contiguous_format}
    wanted = TO_TORCH[dtype]
    return tuple(convertible(t, wanted).to(wanted, **compact) for t in tensor_list)
