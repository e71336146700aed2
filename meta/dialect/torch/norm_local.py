"""Local response normalisation and lengths on ATen. Half precision is computed in float32."""

import torch
import torch.nn.functional as F

from meta import op
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import wide
from meta.op.core.check import normalize_axes


def _window_sum(x, axis, before, after):
    """Return, per element, the sum from ``before`` places before it to ``after`` behind."""
    padded = F.pad(x.movedim(axis, -1), (before, after))
    return padded.unfold(-1, before + after + 1, 1).sum(-1).movedim(-1, axis)


def _divisor(x, size, axis, bias, alpha):
    return bias + alpha / size * _window_sum(x.square(), axis, size // 2, (size - 1) // 2)


@dialect.kernel(op.lrn)
def lrn(x, size, axis, bias, alpha, beta):
    wider = x.to(wide(x.dtype))
    return (wider / _divisor(wider, size, axis, bias, alpha) ** beta).to(x.dtype).contiguous()


@dialect.kernel(op.lrn_dx)
def lrn_dx(x, dy, size, axis, bias, alpha, beta):
    dtype, x, dy = x.dtype, x.to(wide(x.dtype)), dy.to(wide(x.dtype))
    divisor = _divisor(x, size, axis, bias, alpha)
    direct = dy / divisor**beta
    others = _window_sum(direct * x / divisor, axis, (size - 1) // 2, size // 2)
    return (direct - 2 * alpha * beta / size * x * others).to(dtype).contiguous()


@dialect.kernel(op.l2_normalize)
def l2_normalize(x, eps, axis):
    wider = x.to(wide(x.dtype))
    square, axes = wider.square(), normalize_axes(axis, x.ndim)
    square = square.sum(axes, keepdim=True) if axes else square
    return (wider / square.clamp_min(eps).sqrt()).to(x.dtype).contiguous()


@dialect.kernel(op.l2norm)
def l2norm(x):
    return torch.linalg.vector_norm(x, dtype=wide(x.dtype)).to(x.dtype)
