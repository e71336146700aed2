"""Trigonometric and hyperbolic functions on ATen."""

import torch

from meta import op
from meta.dialect.torch import torch as dialect


def _unary(base):
    return dialect.kernel(base, strided=False)


@_unary(op.sin)
def sin(x):
    return torch.sin(x)


@_unary(op.cos)
def cos(x):
    return torch.cos(x)


@_unary(op.tan)
def tan(x):
    return torch.tan(x)


@_unary(op.asin)
def asin(x):
    return torch.asin(x)


@_unary(op.acos)
def acos(x):
    return torch.acos(x)


@_unary(op.atan)
def atan(x):
    return torch.atan(x)


@_unary(op.sinh)
def sinh(x):
    return torch.sinh(x)


@_unary(op.cosh)
def cosh(x):
    return torch.cosh(x)


@_unary(op.asinh)
def asinh(x):
    return torch.asinh(x)


@_unary(op.acosh)
def acosh(x):
    return torch.acosh(x)


@_unary(op.atanh)
def atanh(x):
    return torch.atanh(x)


@dialect.kernel(op.atan2)
def atan2(x1, x2, out):
    wide = torch.float64 if out.dtype == torch.float64 else torch.float32
    torch.atan2(*[torch.as_tensor(x, dtype=wide, device=out.device) for x in (x1, x2)], out=out)
