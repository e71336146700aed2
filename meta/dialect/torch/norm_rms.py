"""Normalisation by the root mean square on ATen. Half precision is computed in float32."""

import torch

from meta import op
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import wide


def _lifted(parameter, x, axis):
    """Return a parameter in x's dtype, shaped to go along ``axis``."""
    shape = [1] * x.ndim
    shape[axis] = -1
    return parameter.to(x.dtype).reshape(shape)


def _inverse(x, axis, eps):
    return torch.rsqrt(x.square().mean(axis, keepdim=True) + eps)


@dialect.kernel(op.rms_norm)
def rms_norm(x, scale, bias, axis, eps):
    dtype, x = x.dtype, x.to(wide(x.dtype))
    y = x * _inverse(x, axis, eps)
    y = y if scale is None else y * _lifted(scale, x, axis)
    y = y if bias is None else y + _lifted(bias, x, axis)
    return y.to(dtype).contiguous()


@dialect.kernel(op.rms_norm_dx)
def rms_norm_dx(x, scale, dy, axis, eps):
    dtype, x, dy = x.dtype, x.to(wide(x.dtype)), dy.to(wide(x.dtype))
    inverse = _inverse(x, axis, eps)
    xhat = x * inverse
    g = dy if scale is None else dy * _lifted(scale, x, axis)
    dx = (inverse * (g - xhat * (g * xhat).mean(axis, keepdim=True))).to(dtype).contiguous()
    if scale is None:
        return dx
    dscale = (dy * xhat).movedim(axis, 0).reshape(x.shape[axis], -1 if x.numel() else 0).sum(1)
    return dx, dscale.to(scale.dtype)
