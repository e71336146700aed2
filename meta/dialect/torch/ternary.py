"""Elementwise operators of three operands on ATen, half precision in float32."""

import torch

from meta import op
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import wide


def _in_wide(*tensors):
    return [t.to(wide(t.dtype)) for t in tensors]


@dialect.kernel(op.addcmul)
def addcmul(x, tensor1, tensor2, value, out):
    out.copy_(torch.addcmul(*_in_wide(x, tensor1, tensor2), value=value))


@dialect.kernel(op.addcdiv)
def addcdiv(x, tensor1, tensor2, value, out):
    out.copy_(torch.addcdiv(*_in_wide(x, tensor1, tensor2), value=value))


@dialect.kernel(op.lerp)
def lerp(x, end, weight, out):
    weights = _in_wide(weight) if isinstance(weight, torch.Tensor) else [weight]
    out.copy_(torch.lerp(*_in_wide(x, end), *weights))
