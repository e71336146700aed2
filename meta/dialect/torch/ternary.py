"""Elementwise operators of three operands on ATen, half precision in float32."""

import torch

from meta import op
from meta.dialect.torch import torch as dialect


def _wide(*tensors):
    own = tensors[0].dtype
    wide = torch.promote_types(own, torch.float32) if own.is_floating_point else own
    return [t.to(wide) for t in tensors]


@dialect.kernel(op.addcmul)
def addcmul(x, tensor1, tensor2, value, out):
    out.copy_(torch.addcmul(*_wide(x, tensor1, tensor2), value=value))


@dialect.kernel(op.addcdiv)
def addcdiv(x, tensor1, tensor2, value, out):
    out.copy_(torch.addcdiv(*_wide(x, tensor1, tensor2), value=value))


@dialect.kernel(op.lerp)
def lerp(x, end, weight, out):
    weights = _wide(weight) if isinstance(weight, torch.Tensor) else [weight]
    out.copy_(torch.lerp(*_wide(x, end), *weights))
