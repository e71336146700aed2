"""Elementwise operators of one tensor on ATen.

Inputs are compact, so results are. What ATen refuses is brought to a dtype that it takes.
"""

import math

import torch

from meta import op
from meta.dialect.torch.operands import compact, widened


@compact(op.relu)
def relu(x):
    return x.clone() if x.dtype == torch.bool else torch.relu(x)


@compact(op.gelu)
def gelu(x, approximate, out):
    wide = widened(x)
    y = torch.nn.functional.gelu(wide, approximate=approximate)
    # ATen's vectors on the CPU make NaN of infinity; x itself is right from about 6 on in float32.
    return out.copy_(torch.where(wide > 12.0, wide, y) if x.device.type == "cpu" else y)


@compact(op.tanh)
def tanh(x):
    return torch.tanh(x)


@compact(op.sigmoid)
def sigmoid(x):
    return torch.sigmoid(x)


@compact(op.erf)
def erf(x):
    return torch.erf(x)


@compact(op.sqrt)
def sqrt(x):
    return torch.sqrt(x)


@compact(op.relu_dx)
def relu_dx(x, y, dy, out):
    positive = (x if y is None else y) > 0
    return out.copy_(dy.masked_fill(~positive, 0))


@compact(op.gelu_dx)
def gelu_dx(x, dy, approximate, out):
    return out.copy_(torch.ops.aten.gelu_backward(*widened(dy, x), approximate=approximate))


@compact(op.tanh_dx)
def tanh_dx(x, y, dy, out):
    dy, t = widened(dy, y if y is not None else x)
    t = torch.tanh(t) if y is None else t
    return out.copy_(dy * (1 - t * t))


@compact(op.sigmoid_dx)
def sigmoid_dx(x, y, dy, out):
    dy, s = widened(dy, y if y is not None else x)
    s = torch.sigmoid(s) if y is None else s
    return out.copy_(dy * s * (1 - s))


@compact(op.erf_dx)
def erf_dx(x, dy, out):
    dy, x = widened(dy, x)
    return out.copy_(dy * torch.exp(-x * x) * (2 / math.sqrt(math.pi)))


@compact(op.sqrt_dx)
def sqrt_dx(x, y, dy, out):
    dy, r = widened(dy, y if y is not None else x)
    r = torch.sqrt(r) if y is None else r
    return out.copy_(dy / (2 * r))


@compact(op.exp)
def exp(x):
    return torch.exp(x)


@compact(op.log)
def log(x):
    return torch.log(x)


@compact(op.rsqrt)
def rsqrt(x):
    return torch.rsqrt(x)


@compact(op.negative)
def negative(x):
    return torch.neg(x)


@compact(op.abs)
def abs(x):
    return x.clone() if x.dtype == torch.bool else torch.abs(x)


@compact(op.logical_not)
def logical_not(x):
    return torch.logical_not(x)


@compact(op.copy)
def copy(x):
    return x.clone()
