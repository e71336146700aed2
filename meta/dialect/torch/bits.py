"""Operators on the bits of elements on ATen."""

from meta import op
from meta.base.dtype import TO_TORCH
from meta.dialect.torch import torch as dialect


@dialect.kernel(op.reinterpret)
def reinterpret(x, dtype):
    return x.view(TO_TORCH[dtype]).clone()
