"""Rounding and the sign on ATen, which rounds no bools."""

import torch

from meta import op
from meta.dialect.torch import torch as dialect


def _unary(base):
    return dialect.kernel(base, strided=False)


def _rounded(function, x):
    return function(x) if x.is_floating_point() else x.clone()


@_unary(op.ceil)
def ceil(x):
    return _rounded(torch.ceil, x)


@_unary(op.floor)
def floor(x):
    return _rounded(torch.floor, x)


@_unary(op.round)
def round(x):
    return _rounded(torch.round, x)


@_unary(op.trunc)
def trunc(x):
    return _rounded(torch.trunc, x)


@_unary(op.sign)
def sign(x):
    return torch.sign(x)


@_unary(op.frac)
def frac(x):
    return torch.frac(x)
