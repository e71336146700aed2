"""Questions about floating point elements on ATen."""

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
