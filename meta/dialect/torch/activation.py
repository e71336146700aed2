"""Activation functions on ATen. Gradients are computed in float32 at least, as `silu_dx` shows."""

import torch
import torch.nn.functional as nn

from meta import op
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import compact, number, widened
from meta.dialect.torch.precision import no_sixth_in_double

_ATEN = torch.ops.aten


@compact(op.silu)
def silu(x, out):
    return out.copy_(nn.silu(widened(x)))


@compact(op.silu_dx)
def silu_dx(x, dy, out):
    x, dy = widened(x, dy)
    return out.copy_(_ATEN.silu_backward(dy, x))


@compact(op.leaky_relu)
def leaky_relu(x, negative_slope, out):
    return out.copy_(nn.leaky_relu(widened(x), negative_slope))


@compact(op.leaky_relu_dx)
def leaky_relu_dx(x, dy, negative_slope, out):
    x, dy = widened(x, dy)
    return out.copy_(_ATEN.leaky_relu_backward(dy, x, negative_slope, False))


@compact(op.elu)
def elu(x, alpha, out):
    return out.copy_(nn.elu(widened(x), alpha))


@compact(op.elu_dx)
def elu_dx(x, dy, alpha, out):
    x, dy = widened(x, dy)
    return out.copy_(_ATEN.elu_backward(dy, alpha, 1, 1, False, x))


@compact(op.softplus)
def softplus(x, beta, threshold, out):
    return out.copy_(nn.softplus(widened(x), beta, threshold))


@compact(op.softplus_dx)
def softplus_dx(x, dy, beta, threshold, out):
    x, dy = widened(x, dy)
    scaled = x * beta
    return out.copy_(torch.where(scaled > threshold, dy, dy * torch.sigmoid(scaled)))


@dialect.kernel(op.hardswish, strided=False, when=no_sixth_in_double)
def hardswish(x, out):
    return out.copy_(nn.hardswish(widened(x)))


@compact(op.hardswish_dx)
def hardswish_dx(x, dy, out):
    x, dy = widened(x, dy)
    return out.copy_(_ATEN.hardswish_backward(dy, x))


@compact(op.prelu)
def prelu(x, weight, out):
    if x.ndim > 1 and weight.ndim:
        weight = weight.reshape(-1, *[1] * (x.ndim - 2))
    return out.copy_(torch.where(x > 0, x, x * weight.reshape(()) if x.ndim == 0 else x * weight))


@compact(op.glu)
def glu(x, axis, out):
    return out.copy_(nn.glu(widened(x), axis))


def _numbers(x, *numbers):
    """Return numbers as tensors of x's dtype: rounded to it, an int exactly."""
    exact = [torch.float64 if isinstance(n, float) else torch.int64 for n in numbers]
    return [number(n, dtype, x.device).to(x.dtype) for n, dtype in zip(numbers, exact, strict=True)]


@compact(op.threshold)
def threshold(x, threshold, value, out):
    bound, instead = _numbers(x, threshold, value)
    return out.copy_(torch.where(x <= bound, instead, x))


@compact(op.threshold_dx)
def threshold_dx(x, dy, threshold, out):
    (bound,) = _numbers(x, threshold)
    return out.copy_(dy.masked_fill(x <= bound, 0))


@compact(op.clip)
def clip(x, a_min, a_max, out):
    return out.copy_(torch.clamp(x, *_numbers(x, a_min, a_max)))


@compact(op.clip_dx)
def clip_dx(x, dy, a_min, a_max, out):
    low, high = _numbers(x, a_min, a_max)
    return out.copy_(dy.masked_fill(~((x >= low) & (x <= high)), 0))
