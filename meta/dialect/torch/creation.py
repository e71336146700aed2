"""Operators that create tensors on ATen."""

import torch

from meta import op
from meta.base.dtype import FROM_TORCH, TO_TORCH, overflow_rounded, prepare_cast
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import kernels, rounded_number
from meta.op.creation import bounds


def fill(fill_value, out):
    """Fill ``out`` with a number: integers drop its fraction; beyond a float's range it is inf."""
    if out.is_floating_point() or out.is_complex():
        out.fill_(overflow_rounded(fill_value, FROM_TORCH[out.dtype]))
    else:
        out.fill_(fill_value if out.dtype == torch.bool else int(fill_value))


kernels(
    {
        op.zeros: lambda out: out.zero_(),
        op.zeros_like: lambda out: out.zero_(),
        op.ones: lambda out: out.fill_(1),
        op.ones_like: lambda out: out.fill_(1),
        op.full: fill,
        op.full_like: fill,
    }
)


@dialect.kernel(op.arange)
def arange(start, stop, step, out):
    start, stop = bounds(start, stop)
    dtype = torch.float64 if isinstance(start + stop + step, float) else torch.int64
    out.copy_(torch.arange(len(out), dtype=dtype, device=out.device).mul_(step).add_(start))


@dialect.kernel(op.one_hot)
def one_hot(indices, depth, on_value, off_value, axis, call):
    shape = [1] * (indices.ndim + 1)
    shape[axis] = depth
    places = torch.arange(depth, device=indices.device).view(shape)
    hot = indices.long().unsqueeze(axis) == places
    on, off = (_number(value, hot, TO_TORCH[call.out.dtype]) for value in (on_value, off_value))
    return torch.where(hot, on, off).contiguous()


def _number(value, like, dtype):
    """Return a number, or a tensor of one element, as a 0-d tensor of a dtype."""
    if isinstance(value, torch.Tensor):
        return prepare_cast(value.reshape(()), dtype).to(dtype)
    return rounded_number(value, dtype, like.device)
