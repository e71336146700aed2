"""Elementwise functions of one tensor, and casts on ATen.

Inputs are compact, so results are. What ATen refuses is brought to a dtype that it takes.

Most of ATen's are vectorised on the CPU, where generated code calls the C library for each element:
for a million float32 on one core 0.4 to 1.5 ms instead of 7 to 30 (asin and acos: 7 instead of 14).
Those are LIBRARY; asinh and acosh are no faster.
"""

import torch

from meta import op
from meta.base.dtype import TO_TORCH, convertible
from meta.dialect.core import LIBRARY
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import compact, widened


@compact(op.sqrt)
def sqrt(x):
    return torch.sqrt(x)


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


@compact(op.copy)
def copy(x):
    return x.clone()


@compact(op.log2)
def log2(x):
    return torch.log2(x)


@compact(op.log10)
def log10(x):
    return torch.log10(x)


@compact(op.log1p)
def log1p(x):
    return torch.log1p(x)


@compact(op.expm1)
def expm1(x):
    return torch.expm1(x)


@compact(op.reciprocal)
def reciprocal(x):
    return torch.reciprocal(x)


def _rounded(function, x):
    return function(x) if x.is_floating_point() else x.clone()


@compact(op.ceil)
def ceil(x):
    return _rounded(torch.ceil, x)


@compact(op.floor)
def floor(x):
    return _rounded(torch.floor, x)


@compact(op.round)
def round(x):
    return _rounded(torch.round, x)


@compact(op.trunc)
def trunc(x):
    return _rounded(torch.trunc, x)


@compact(op.sign)
def sign(x):
    return torch.sign(x)


@compact(op.frac)
def frac(x):
    return torch.frac(x)


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


@compact(op.exp2, plevel=LIBRARY)
def exp2(x, out):
    return out.copy_(torch.special.exp2(widened(x)))


@compact(op.square)
def square(x, out):
    return out.copy_(torch.square(x))


@compact(op.nan_to_num)
def nan_to_num(x, nan, posinf, neginf):
    return torch.nan_to_num(x, nan, posinf, neginf)


@dialect.kernel(op.cast)
def cast(data, dtype):
    wanted = TO_TORCH[dtype]
    source = convertible(data, wanted)
    return source.to(wanted, copy=True, memory_format=torch.contiguous_format)


@dialect.kernel(op.cast_like)
def cast_like(x, out):
    out.copy_(convertible(x, out.dtype))


@dialect.kernel(op.group_cast)
def group_cast(tensor_list, dtype):
    compact = {"copy": True, "memory_format": torch.contiguous_format}
    wanted = TO_TORCH[dtype]
    return tuple(convertible(t, wanted).to(wanted, **compact) for t in tensor_list)
