"""Statistics of elements on ATen. Half precision is accumulated in float32."""

import torch

from meta import op
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import wide
from meta.dialect.torch.reduce import max_, min_
from meta.op.core.reduction import reduction
from meta.op.moments import per_degree


def _var(x, axis, exclude, correction):
    """Return the variance in the accumulator's dtype, reduced axes kept."""
    r = reduction(x.ndim, axis, True, exclude)
    x = x.to(wide(x.dtype))
    centred = x - x.mean(r.axes, keepdim=True) if r.axes else x - x
    total = centred.square().sum(r.axes, keepdim=True) if r.axes else centred
    return total * per_degree(r.count(x.shape), correction)


@dialect.kernel(op.var)
def var(x, axis, exclude, correction, call):
    return _var(x, axis, exclude, correction).to(x.dtype).reshape(call.out.shape).contiguous()


@dialect.kernel(op.std)
def std(x, axis, exclude, correction, call):
    deviation = _var(x, axis, exclude, correction).sqrt()
    return deviation.to(x.dtype).reshape(call.out.shape).contiguous()


@dialect.kernel(op.logsumexp)
def logsumexp(x, axis, exclude, call):
    axes = reduction(x.ndim, axis, False, exclude).axes
    if not axes:
        return x.clone(memory_format=torch.contiguous_format)
    total = torch.logsumexp(x.to(wide(x.dtype)), axes)
    return total.to(x.dtype).reshape(call.out.shape).contiguous()


dialect.kernel(op.amax)(max_)
dialect.kernel(op.amin)(min_)
