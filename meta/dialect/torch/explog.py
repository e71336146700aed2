"""Exponentials, logarithms and the reciprocal on ATen."""

import torch

from meta import op
from meta.dialect.torch.operands import compact


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
