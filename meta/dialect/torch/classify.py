"""Questions about floating point elements on ATen, and the replacement of those not finite."""

import torch

from meta import op
from meta.dialect.torch import torch as dialect


def _unary(base):
    return dialect.kernel(base, strided=False)


@_unary(op.isnan)
def isnan(x):
    return torch.isnan(x)


@_unary(op.isinf)
def isinf(x):
    return torch.isinf(x)


@_unary(op.isfinite)
def isfinite(x):
    return torch.isfinite(x)


@_unary(op.isposinf)
def isposinf(x):
    return torch.isposinf(x)


@_unary(op.isneginf)
def isneginf(x):
    return torch.isneginf(x)


@_unary(op.signbit)
def signbit(x):
    return torch.signbit(x)


@_unary(op.nan_to_num)
def nan_to_num(x, nan, posinf, neginf):
    return torch.nan_to_num(x, nan, posinf, neginf)
