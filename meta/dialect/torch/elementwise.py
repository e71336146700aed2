"""Elementwise functions of one tensor and casts on ATen.

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
from meta.dialect.torch.operands import compact, of_one, widened

of_one(
    {
        op.sqrt: torch.sqrt,
        op.exp: torch.exp,
        op.log: torch.log,
        op.rsqrt: torch.rsqrt,
        op.log2: torch.log2,
        op.log10: torch.log10,
        op.log1p: torch.log1p,
        op.expm1: torch.expm1,
        op.reciprocal: torch.reciprocal,
        op.sign: torch.sign,
        op.frac: torch.frac,
        op.asinh: torch.asinh,
        op.acosh: torch.acosh,
    }
)
of_one(
    {
        op.sin: torch.sin,
        op.cos: torch.cos,
        op.tan: torch.tan,
        op.asin: torch.asin,
        op.acos: torch.acos,
        op.atan: torch.atan,
        op.sinh: torch.sinh,
        op.cosh: torch.cosh,
        op.atanh: torch.atanh,
    },
    plevel=LIBRARY,
)


@compact(op.sqrt_dx)
def sqrt_dx(x, y, dy, out):
    dy, r = widened(dy, y if y is not None else x)
    r = torch.sqrt(r) if y is None else r
    return out.copy_(dy / (2 * r))


@compact(op.copy)
def copy(x):
    return x.clone()


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
