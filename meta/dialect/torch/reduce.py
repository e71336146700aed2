"""Reductions along axes on ATen."""

from functools import partial
from math import prod

import torch

from meta import op
from meta.base.dtype import TO_TORCH
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import kernels, wide
from meta.op.core.reduction import reduction
from meta.op.reduce import per_degree


def accumulator(dtype):
    """Return the dtype in which values of a dtype are added up."""
    return wide(dtype) if dtype.is_floating_point or dtype.is_complex else torch.int64


def _promised(y, call):
    """Return a result with the dtype and shape that the operator has promised."""
    return y.to(TO_TORCH[call.out.dtype]).reshape(call.out.shape).contiguous()


def _reduced(function, x, axis, keepdims, call):
    """Reduce by ``function(x, axes)``; over no axes each gives x itself."""
    axes = reduction(x.ndim, axis, keepdims).axes
    if axes:
        return _promised(function(x, axes), call)
    return x.to(TO_TORCH[call.out.dtype], copy=True, memory_format=torch.contiguous_format)


def _mean(x, axes):
    count = prod(x.shape[a] for a in axes)
    return torch.sum(x, axes, dtype=wide(x.dtype)) / count


def rows(x, axes):
    """Return ``x`` with the axes that stay in front and the reduced ones flattened at the end."""
    order = (*(i for i in range(x.ndim) if i not in axes), *axes)
    stay = [x.shape[i] for i in order[: x.ndim - len(axes)]]
    return x.permute(order).reshape(*stay, prod(x.shape[a] for a in axes))


REDUCTIONS = {
    op.sum: lambda x, axes: torch.sum(x, axes, dtype=accumulator(x.dtype)),
    op.mean: _mean,
    op.max: torch.amax,
    op.min: torch.amin,
    op.prod: lambda x, axes: torch.prod(rows(x, axes), -1, dtype=accumulator(x.dtype)),
    op.all: lambda x, axes: torch.all(rows(x, axes) != 0, -1),
    op.any: lambda x, axes: torch.any(rows(x, axes) != 0, -1),
    op.logsumexp: lambda x, axes: torch.logsumexp(x.to(wide(x.dtype)), axes),
}
kernels({base: partial(_reduced, function) for base, function in REDUCTIONS.items()})


def _picked(pick, x, axis, call):
    flat = rows(x, reduction(x.ndim, axis, False).axes)
    return _promised(pick(flat.to(torch.uint8) if flat.dtype == torch.bool else flat, -1), call)


kernels({op.argmax: partial(_picked, torch.argmax), op.argmin: partial(_picked, torch.argmin)})


def _spread(dy, x_shape, axes, dtype):
    """Return a reduction's gradient, repeated along the reduced axes, as a fresh tensor."""
    kept = tuple(1 if i in axes else d for i, d in enumerate(x_shape))
    result = torch.empty(x_shape, dtype=dtype, device=dy.device)
    return result.copy_(dy.reshape(kept))


@dialect.kernel(op.sum_dx)
def sum_dx(x, dy, axis, keepdims):
    return _spread(dy, x.shape, reduction(x.ndim, axis, keepdims).axes, x.dtype)


@dialect.kernel(op.mean_dx)
def mean_dx(dy, axis, keepdims, call):
    shape = call.out.shape
    r = reduction(len(shape), axis, keepdims)
    share = (dy.to(wide(dy.dtype)) / max(r.count(shape), 1)).to(dy.dtype)
    return _spread(share, shape, r.axes, dy.dtype)


@dialect.kernel(op.prod_dx)
def prod_dx(x, dy, axis, keepdims):
    axes = reduction(x.ndim, axis, keepdims).axes
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


def _var(x, axis, correction):
    """Return the variance in the accumulator's dtype, reduced axes kept."""
    r = reduction(x.ndim, axis, True)
    x = x.to(wide(x.dtype))
    centred = x - x.mean(r.axes, keepdim=True) if r.axes else x - x
    total = centred.square().sum(r.axes, keepdim=True) if r.axes else centred
    return total * per_degree(r.count(x.shape), correction)


@dialect.kernel(op.var)
def var(x, axis, correction, call):
    return _promised(_var(x, axis, correction), call)


@dialect.kernel(op.std)
def std(x, axis, correction, call):
    return _promised(_var(x, axis, correction).sqrt(), call)
