"""Activation functions on ATen. Gradients are computed in float32 at least, as `silu_dx` shows."""

import torch
import torch.nn.functional as nn

from meta import op
from meta.dialect.torch import torch as dialect

_ATEN = torch.ops.aten


def _unary(base):
    return dialect.kernel(base, strided=False)


def _wide(*tensors):
    """All in one dtype, at least float32: half precision is rounded once, at the end."""
    double = any(t.dtype == torch.float64 for t in tensors)
    found = [t.to(torch.float64 if double else torch.float32) for t in tensors]
    return found if len(found) > 1 else found[0]


@_unary(op.silu)
def silu(x, out):
    return out.copy_(nn.silu(_wide(x)))


@_unary(op.silu_dx)
def silu_dx(x, dy, out):
    x, dy = _wide(x, dy)
    return out.copy_(_ATEN.silu_backward(dy, x))


@_unary(op.leaky_relu)
def leaky_relu(x, negative_slope, out):
    return out.copy_(nn.leaky_relu(_wide(x), negative_slope))


@_unary(op.leaky_relu_dx)
def leaky_relu_dx(x, dy, negative_slope, out):
    x, dy = _wide(x, dy)
    return out.copy_(_ATEN.leaky_relu_backward(dy, x, negative_slope, False))


@_unary(op.elu)
def elu(x, alpha, out):
    return out.copy_(nn.elu(_wide(x), alpha))


@_unary(op.elu_dx)
def elu_dx(x, dy, alpha, out):
    x, dy = _wide(x, dy)
    return out.copy_(_ATEN.elu_backward(dy, alpha, 1, 1, False, x))


@_unary(op.softplus)
def softplus(x, beta, threshold, out):
    return out.copy_(nn.softplus(_wide(x), beta, threshold))


@_unary(op.softplus_dx)
def softplus_dx(x, dy, beta, threshold, out):
    x, dy = _wide(x, dy)
    scaled = x * beta
    return out.copy_(torch.where(scaled > threshold, dy, dy * torch.sigmoid(scaled)))


@_unary(op.hardswish)
def hardswish(x, out):
    return out.copy_(nn.hardswish(_wide(x)))


@_unary(op.hardswish_dx)
def hardswish_dx(x, dy, out):
    x, dy = _wide(x, dy)
    return out.copy_(_ATEN.hardswish_backward(dy, x))


@_unary(op.prelu)
def prelu(x, weight, out):
    if x.ndim > 1 and weight.ndim:
        weight = weight.reshape(-1, *[1] * (x.ndim - 2))
    return out.copy_(torch.where(x > 0, x, x * weight.reshape(()) if x.ndim == 0 else x * weight))


@_unary(op.glu)
def glu(x, axis, out):
    return out.copy_(nn.glu(_wide(x), axis))


@_unary(op.threshold)
def threshold(x, threshold, value, out):
    # As tensors of x's dtype: a number is rounded to it, and an int stays exact.
    bound, instead = (torch.tensor(n, device=x.device).to(x.dtype) for n in (threshold, value))
    return out.copy_(torch.where(x <= bound, instead, x))


@_unary(op.threshold_dx)
def threshold_dx(x, dy, threshold, out):
    bound = torch.tensor(threshold, device=x.device).to(x.dtype)
    return out.copy_(dy.masked_fill(x <= bound, 0))


def _bounds(x, a_min, a_max, dtype):
    return [torch.tensor(n, device=x.device).to(dtype) for n in (a_min, a_max)]


@_unary(op.clip)
def clip(x, a_min, a_max, out):
    return out.copy_(torch.clamp(x.to(out.dtype), *_bounds(x, a_min, a_max, out.dtype)))


@_unary(op.clip_dx)
def clip_dx(x, dy, a_min, a_max, out):
    low, high = _bounds(x, a_min, a_max, x.dtype)
    return out.copy_(dy.masked_fill(~((x >= low) & (x <= high)), 0))
