"""Questions about floating point elements on ATen, and the replacement of those not finite."""

import torch

from meta import op
from meta.dialect.torch.operands import compact


@compact(op.isnan)
def isnan(x):
    return torch.isnan(x)


@compact(op.isinf)
def isinf(x):
    return torch.isinf(x)


@compact(op.isfinite)
def isfinite(x):
    return torch.isfinite(x)


@compact(op.isposinf)
def isposinf(x):
    return torch.isposinf(x)


@compact(op.isneginf)
def isneginf(x):
    return torch.isneginf(x)


@compact(op.signbit)
def signbit(x):
    return torch.signbit(x)


@compact(op.nan_to_num)
def nan_to_num(x, nan, posinf, neginf):
    return torch.nan_to_num(x, nan, posinf, neginf)
