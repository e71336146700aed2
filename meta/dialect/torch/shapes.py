"""Changes and queries of shapes on ATen."""

import torch

from meta import op
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import kernels, wide
from meta.op.core.check import inverse_permutation, permutation
from meta.op.shapes import collapsed_axes


def fresh(x: torch.Tensor) -> torch.Tensor:
    """Return a compact copy."""
    return x.clone(memory_format=torch.contiguous_format)


@dialect.kernel(op.reshape_like)
@dialect.kernel(op.squeeze)
@dialect.kernel(op.expand_dims)
@dialect.kernel(op.batch_flatten)
@dialect.kernel(op.reshape)
def reshape(x, call):
    return fresh(x.reshape(call.outputs[0].shape))


kernels(
    {
        op.permute_dims: lambda x, axes: fresh(x.permute(permutation(axes, x.ndim))),
        op.permute_dims_dx: lambda x, axes: fresh(x.permute(inverse_permutation(axes, x.ndim))),
        op.swapaxes: lambda x, axis1, axis2: fresh(x.transpose(axis1, axis2)),
        op.shape_as_tensor: lambda x, out: out.copy_(torch.tensor(x.shape, dtype=torch.int64)),
    }
)


def sliced(x, ranges):
    """Return the elements of ``x`` that the ranges name, for negative steps in reversed order."""
    ascending = [r[::-1] if r.step < 0 else r for r in ranges]
    return x[tuple(slice(r.start, r.stop, r.step) if r else slice(0, 0) for r in ascending)]


def reversed_axes(ranges):
    """Return the axes whose order `sliced` leaves to be reversed."""
    return [i for i, r in enumerate(ranges) if r.step < 0]


@dialect.kernel(op.broadcast_to_like)
@dialect.kernel(op.broadcast_to)
def broadcast_to(x, call):
    return fresh(x.expand(call.out.shape))


@dialect.kernel(op.collapse_sum_like)
def collapse_sum_like(x, out):
    axes = collapsed_axes(x.shape, out.shape)
    dtype = wide(x.dtype) if x.dtype.is_floating_point else torch.int64
    out.copy_(torch.sum(x, axes, dtype=dtype).reshape(out.shape) if axes else x.reshape(out.shape))
