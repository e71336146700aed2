"""Exponentials, logarithms and the reciprocal on ATen."""

import torch

from meta import op
from meta.dialect.torch import torch as dialect


def _unary(base):
    return dialect.kernel(base, strided=False)


@_unary(op.log2)
def log2(x):
    return torch.log2(x)


@_unary(op.log10)
def log10(x):
    return torch.log10(x)


@_unary(op.log1p)
def log1p(x):
    return torch.log1p(x)


@_unary(op.expm1)
def expm1(x):
    return torch.expm1(x)


@_unary(op.reciprocal)
def reciprocal(x):
    return torch.reciprocal(x)
