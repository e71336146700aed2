"""Elementwise functions of one tensor and casts on ATen.

Inputs are compact, so results are. What ATen refuses is brought to a dtype that it takes.

Most of ATen's are vectorised on the CPU, where generated code calls the C library for each element:
for a million float32 on one core 0.4 to 1.5 ms instead of 7 to 30 (asin and acos: 7 instead of 14).
Those are LIBRARY; asinh and acosh are no faster.
"""

import torch

from meta import op
from meta.base.dtype import TO_TORCH, prepare_cast
from meta.dialect.core import LIBRARY
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.aten_calls import functions_of, without_kernel
from meta.dialect.torch.operands import all_rounded_once, of_binary, of_unary, rounded_once


def _sign(x):
    if x.is_complex():
        return torch.sgn(x)
    return torch.where(x.isnan(), x, torch.sign(x)) if x.is_floating_point() else torch.sign(x)


def _round(x):
    if x.is_complex():
        return torch.view_as_complex(torch.round(torch.view_as_real(x)))
    return torch.round(x) if x.is_floating_point() else x.clone()


def _expm1(x):
    if not x.is_complex():
        return torch.expm1(x)
    a, b = x.real, x.imag
    # 0 is added so that -0 gives 0, as it should be.
    part = torch.expm1(a) * torch.cos(b) - 2 * torch.sin(b / 2) ** 2 + 0.0
    near = torch.complex(part, torch.exp(a) * torch.sin(b))
    # ATen's own is wrong of infinities, near 0 as well.
    return torch.where(torch.isfinite(x), near, torch.exp(x) - 1)


def _log1p(x):
    if not x.is_complex():
        return torch.log1p(x)
    return torch.where(torch.isfinite(x), torch.log1p(x), torch.log(x + 1))


def _of_floats(function):
    """Return a function that leaves integers as they are."""
    return lambda x: function(x) if x.is_floating_point() else x.clone()


of_unary(
    {
        op.copy: torch.clone,
        op.detach: torch.clone,
        op.log1p: _log1p,
        op.expm1: _expm1,
        op.sign: _sign,
        op.ceil: _of_floats(torch.ceil),
        op.floor: _of_floats(torch.floor),
        op.round: _round,
        op.trunc: _of_floats(torch.trunc),
    }
)
of_unary(
    functions_of(
        *(op.sin, op.cos, op.tan, op.asin, op.acos, op.atan, op.sinh, op.cosh, op.atanh),
    ),
    plevel=LIBRARY,
)
of_binary(functions_of(op.atan2), plevel=LIBRARY)
all_rounded_once(functions_of(op.exp2), plevel=LIBRARY)
all_rounded_once(functions_of(op.deg2rad, op.rad2deg))
of_unary(functions_of(*without_kernel("elementwise")))


@rounded_once(op.sqrt_dx)
def sqrt_dx(x, y, dy):
    return dy / (2 * (torch.sqrt(x) if y is None else y))


@dialect.kernel(op.nan_to_num, strided=False)
def nan_to_num(x, nan, posinf, neginf):
    return torch.nan_to_num(x, nan, posinf, neginf)


@dialect.kernel(op.astype)
def astype(x, dtype):
    wanted = TO_TORCH[dtype]
    source = prepare_cast(x, wanted)
    return source.to(wanted, copy=True, memory_format=torch.contiguous_format)


@dialect.kernel(op.cast_like)
def cast_like(x, out):
    out.copy_(prepare_cast(x, out.dtype))


@dialect.kernel(op.group_cast)
def group_cast(tensor_list, dtype):
    return tuple(astype(t, dtype) for t in tensor_list)
