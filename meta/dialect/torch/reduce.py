"""Reductions along axes on ATen."""

import torch

from meta import op
from meta.base.dtype import TO_TORCH
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import wide
from meta.op.core.reduction import reduction
from meta.op.reduce import per_degree


@dialect.kernel(op.sum)
def sum(x, axis, keepdims, exclude, call):
    out = call.out
    axes = reduction(x.ndim, axis, keepdims, exclude).axes
    if not axes:
        return x.to(TO_TORCH[out.dtype], copy=True, memory_format=torch.contiguous_format)
    dtype = wide(x.dtype) if x.dtype.is_floating_point else torch.int64
    return torch.sum(x, axes, dtype=dtype).to(TO_TORCH[out.dtype]).reshape(out.shape).contiguous()


def _spread(dy, x_shape, axes, dtype):
    """Return a reduction's gradient, repeated along the reduced axes, as a fresh tensor."""
    kept = tuple(1 if i in axes else d for i, d in enumerate(x_shape))
    result = torch.empty(x_shape, dtype=dtype, device=dy.device)
    return result.copy_(dy.reshape(kept))


@dialect.kernel(op.sum_dx)
def sum_dx(x, dy, axis, keepdims, exclude):
    return _spread(dy, x.shape, reduction(x.ndim, axis, keepdims, exclude).axes, x.dtype)


@dialect.kernel(op.mean)
def mean(x, axis, keepdims, exclude, call):
    r = reduction(x.ndim, axis, keepdims, exclude)
    total = torch.sum(x, r.axes, dtype=wide(x.dtype)) if r.axes else x.to(wide(x.dtype))
    return (total / r.count(x.shape)).to(x.dtype).reshape(call.out.shape).contiguous()


@dialect.kernel(op.mean_dx)
def mean_dx(dy, axis, keepdims, exclude, call):
    shape = call.out.shape
    r = reduction(len(shape), axis, keepdims, exclude)
    share = (dy.to(wide(dy.dtype)) / max(r.count(shape), 1)).to(dy.dtype)
    return _spread(share, shape, r.axes, dy.dtype)


def _extremum(pick, x, axis, exclude, call):
    axes = reduction(x.ndim, axis, False, exclude).axes
    if not axes:
        return x.clone(memory_format=torch.contiguous_format)
    return pick(x, axes).reshape(call.out.shape).contiguous()


@dialect.kernel(op.max)
def max_(x, axis, exclude, call):
    return _extremum(torch.amax, x, axis, exclude, call)


@dialect.kernel(op.min)
def min_(x, axis, exclude, call):
    return _extremum(torch.amin, x, axis, exclude, call)


def rows(x, axes):
    """Return ``x`` with the axes that stay in front and the reduced ones flattened at the end."""
    order = (*(i for i in range(x.ndim) if i not in axes), *axes)
    stay = [x.shape[i] for i in order[: x.ndim - len(axes)]]
    count = 1
    for a in axes:
        count *= x.shape[a]
    return x.permute(order).reshape(*stay, count)


def _index(pick, x, axis, exclude, call):
    flat = rows(x, reduction(x.ndim, axis, False, exclude).axes)
    flat = flat.to(torch.uint8) if flat.dtype == torch.bool else flat
    return pick(flat, -1).reshape(call.out.shape).contiguous()


@dialect.kernel(op.argmax)
def argmax(x, axis, exclude, call):
    return _index(torch.argmax, x, axis, exclude, call)


@dialect.kernel(op.argmin)
def argmin(x, axis, exclude, call):
    return _index(torch.argmin, x, axis, exclude, call)


@dialect.kernel(op.prod)
def prod(x, axis, exclude, call):
    out = call.out
    dtype = wide(x.dtype) if x.dtype.is_floating_point else torch.int64
    flat = rows(x, reduction(x.ndim, axis, False, exclude).axes)
    return torch.prod(flat, -1, dtype=dtype).to(TO_TORCH[out.dtype]).reshape(out.shape).contiguous()


@dialect.kernel(op.prod_dx)
def prod_dx(x, dy, axis, keepdims, exclude):
    axes = reduction(x.ndim, axis, keepdims, exclude).axes
    order = (*(i for i in range(x.ndim) if i not in axes), *axes)
    flat = rows(x, axes).to(wide(x.dtype))
    n = flat.shape[-1]
    # Products of what is before and behind each element: right with zeros, and without dividing.
    one = torch.ones_like(flat[..., :1])
    before = torch.cumprod(torch.cat([one, flat[..., : max(n - 1, 0)]], -1), -1)[..., :n]
    behind = torch.cumprod(torch.cat([one, flat[..., 1:].flip(-1)], -1), -1)[..., :n].flip(-1)
    dx = before * behind * dy.reshape(*flat.shape[:-1], 1).to(flat.dtype)
    back = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    back.permute(order).copy_(dx.reshape([x.shape[i] for i in order]))
    return back


@dialect.kernel(op.all)
def all(x, axis, exclude, call):
    flat = rows(x, reduction(x.ndim, axis, False, exclude).axes)
    return torch.all(flat != 0, -1).reshape(call.out.shape).contiguous()


@dialect.kernel(op.any)
def any(x, axis, exclude, call):
    flat = rows(x, reduction(x.ndim, axis, False, exclude).axes)
    return torch.any(flat != 0, -1).reshape(call.out.shape).contiguous()


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
