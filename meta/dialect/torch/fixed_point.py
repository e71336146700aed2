"""Products of integers and fixed-point numbers on ATen, in 64 bits."""

import torch

from meta import op
from meta.dialect.torch import torch as dialect

BEYOND = 32
"""The shift to the right from which on every product rounds to 0."""


def _int64(x, like):
    return torch.as_tensor(x, device=like.device).to(torch.int64)


@dialect.kernel(op.fixed_point_multiply)
def fixed_point_multiply(x, multiplier, shift, rounding, out):
    shift = _int64(shift, x)
    left, right = shift.clamp(min=0), (-shift).clamp(0, BEYOND)
    product = (x.to(torch.int64) << left) * _int64(multiplier, x)
    half = torch.ones_like(right) << (right + 30)
    if rounding == "nearest":
        half = half - (product < 0).to(torch.int64)
    out.copy_((product + half) >> (right + 31))


@dialect.kernel(op.fixed_point_number)
def fixed_point_number(x):
    fraction, shift = torch.frexp(x)
    scaled = fraction * 2.0**31
    whole = torch.trunc(scaled + torch.copysign(torch.full_like(scaled, 0.5), scaled))
    carry = whole.abs() == 2.0**31
    return torch.where(carry, whole / 2, whole).to(torch.int32), shift + carry.to(torch.int32)
