"""Rounding and the sign on ATen, which rounds no bools."""

import torch

from meta import op
from meta.dialect.torch.operands import compact


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
