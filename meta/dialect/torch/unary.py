"""Elementwise operators of one tensor on ATen.

Inputs are compact, so results are. What ATen refuses is brought to a dtype that it takes.
"""

import math

import torch

from meta import op
from meta.dialect.torch import torch as dialect


def _unary(base):
    return dialect.kernel(base, strided=False)


def _wide(x):
    """Half precision as float32, in which products of several factors are computed."""
    return x if x.dtype == torch.float64 else x.float()


@_unary(op.relu)
def relu(x):
    return x.clone() if x.dtype == torch.bool else torch.relu(x)


@_unary(op.gelu)
def gelu(x, approximate, out):
    wide = _wide(x)
    y = torch.nn.functional.gelu(wide, approximate=approximate)
    # ATen's vectors on the CPU make NaN of infinity; x itself is right from about 6 on in float32.
    return out.copy_(torch.where(wide > 12.0, wide, y) if x.device.type == "cpu" else y)


@_unary(op.tanh)
def tanh(x):
    return torch.tanh(x)


@_unary(op.sigmoid)
def sigmoid(x):
    return torch.sigmoid(x)


@_unary(op.erf)
def erf(x):
    return torch.erf(x)


@_unary(op.sqrt)
def sqrt(x):
    return torch.sqrt(x)


@_unary(op.relu_dx)
def relu_dx(x, y, dy, out):
    positive = (x if y is None else y) > 0
    return out.copy_(dy.masked_fill(~positive, 0))


@_unary(op.gelu_dx)
def gelu_dx(x, dy, approximate, out):
    return out.copy_(torch.ops.aten.gelu_backward(*_pair(dy, x), approximate=approximate))


def _pair(dy, a):
    """Both in float32 at least: half precision is rounded once, at the end."""
    wide = torch.promote_types(a.dtype, torch.float32)
    return dy.to(wide), a.to(wide)


@_unary(op.tanh_dx)
def tanh_dx(x, y, dy, out):
    dy, t = _pair(dy, y if y is not None else x)
    t = torch.tanh(t) if y is None else t
    return out.copy_(dy * (1 - t * t))


@_unary(op.sigmoid_dx)
def sigmoid_dx(x, y, dy, out):
    dy, s = _pair(dy, y if y is not None else x)
    s = torch.sigmoid(s) if y is None else s
    return out.copy_(dy * s * (1 - s))


@_unary(op.erf_dx)
def erf_dx(x, dy, out):
    dy, x = _pair(dy, x)
    return out.copy_(dy * torch.exp(-x * x) * (2 / math.sqrt(math.pi)))


@_unary(op.sqrt_dx)
def sqrt_dx(x, y, dy, out):
    dy, r = _pair(dy, y if y is not None else x)
    r = torch.sqrt(r) if y is None else r
    return out.copy_(dy / (2 * r))


@_unary(op.exp)
def exp(x):
    return torch.exp(x)


@_unary(op.log)
def log(x):
    return torch.log(x)


@_unary(op.rsqrt)
def rsqrt(x):
    return torch.rsqrt(x)


@_unary(op.negative)
def negative(x):
    return torch.neg(x)


@_unary(op.abs)
def abs(x):
    return x.clone() if x.dtype == torch.bool else torch.abs(x)


@_unary(op.logical_not)
def logical_not(x):
    return torch.logical_not(x)


@_unary(op.copy)
def copy(x):
    return x.clone()
