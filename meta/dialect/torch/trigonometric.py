"""Trigonometric and hyperbolic functions on ATen.

Most of ATen's are vectorised on the CPU, where generated code calls the C library for each element:
for a million float32 on one core 0.4 to 1.5 ms instead of 7 to 30 (asin and acos: 7 instead of 14).
Those are LIBRARY; asinh and acosh are no faster.
"""

import torch

from meta import op
from meta.dialect.core import LIBRARY
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import compact


def _vectorised(base):
    return dialect.kernel(base, plevel=LIBRARY, strided=False)


@_vectorised(op.sin)
def sin(x):
    return torch.sin(x)


@_vectorised(op.cos)
def cos(x):
    return torch.cos(x)


@_vectorised(op.tan)
def tan(x):
    return torch.tan(x)


@_vectorised(op.asin)
def asin(x):
    return torch.asin(x)


@_vectorised(op.acos)
def acos(x):
    return torch.acos(x)


@_vectorised(op.atan)
def atan(x):
    return torch.atan(x)


@_vectorised(op.sinh)
def sinh(x):
    return torch.sinh(x)


@_vectorised(op.cosh)
def cosh(x):
    return torch.cosh(x)


@compact(op.asinh)
def asinh(x):
    return torch.asinh(x)


@compact(op.acosh)
def acosh(x):
    return torch.acosh(x)


@_vectorised(op.atanh)
def atanh(x):
    return torch.atanh(x)


@dialect.kernel(op.atan2, plevel=LIBRARY)
def atan2(x1, x2, out):
    wide = torch.float64 if out.dtype == torch.float64 else torch.float32
    torch.atan2(*[torch.as_tensor(x, dtype=wide, device=out.device) for x in (x1, x2)], out=out)


@compact(op.deg2rad)
def deg2rad(x, out):
    return out.copy_(torch.deg2rad(x.to(torch.promote_types(x.dtype, torch.float32))))


@compact(op.rad2deg)
def rad2deg(x, out):
    return out.copy_(torch.rad2deg(x.to(torch.promote_types(x.dtype, torch.float32))))
