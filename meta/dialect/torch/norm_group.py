"""Normalisation of groups of channels on ATen. Half precision is normalised in float32."""

from math import prod

import torch

from meta import op
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import widened


def _compact(*tensors):
    """Make tensors compact, what is half precision in float32; None stays."""
    return [None if t is None else widened(t).contiguous() for t in tensors]


def _forward(x, num_groups, scale, bias, eps):
    """Return y, mean and invvar, x and parameters being wide."""
    extents = (x.shape[0], x.shape[1], prod(x.shape[2:]))
    return torch.native_group_norm(x, scale, bias, *extents, num_groups, eps)


def _normalised(x, num_groups, scale, bias, eps):
    if not x.numel():
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    y, _, _ = _forward(*_compact(x), num_groups, *_compact(scale, bias), eps)
    return y.to(x.dtype).contiguous()


@dialect.kernel(op.group_norm)
def group_norm(x, num_groups, scale, bias, eps):
    return _normalised(x, num_groups, scale, bias, eps)


@dialect.kernel(op.instance_norm)
def instance_norm(x, scale, bias, eps):
    return _normalised(x, x.shape[1], scale, bias, eps)


@dialect.kernel(op.group_norm_dx)
def group_norm_dx(x, num_groups, scale, dy, eps):
    if not x.numel():
        dx = torch.empty_like(x, memory_format=torch.contiguous_format)
        return dx if scale is None else (dx, torch.zeros_like(scale), torch.zeros_like(scale))
    wide, wide_dy, wide_scale = _compact(x, dy, scale)
    _, mean, inverse = _forward(wide, num_groups, None, None, eps)
    extents = (x.shape[0], x.shape[1], prod(x.shape[2:]))
    mask = [True, scale is not None, scale is not None]
    dx, dscale, dbias = torch.ops.aten.native_group_norm_backward(
        wide_dy, wide, mean, inverse, wide_scale, *extents, num_groups, mask
    )
    dx = dx.to(x.dtype).contiguous()
    return dx if scale is None else (dx, dscale.to(scale.dtype), dbias.to(scale.dtype))
