"""Smooth activation functions and shrinkages on ATen, computed in float32 at least."""

import torch
import torch.nn.functional as nn

from meta import op
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.precision import no_sixth_in_double


def _unary(base):
    return dialect.kernel(base, strided=False)


def _wide(*tensors):
    """All in float32 at least: half precision is rounded once, at the end."""
    wide = torch.promote_types(tensors[0].dtype, torch.float32)
    found = [t.to(wide) for t in tensors]
    return found if len(found) > 1 else found[0]


@_unary(op.mish)
def mish(x, out):
    return out.copy_(nn.mish(_wide(x)))


@_unary(op.mish_dx)
def mish_dx(x, dy, out):
    x, dy = _wide(x, dy)
    return out.copy_(torch.ops.aten.mish_backward(dy, x))


@_unary(op.selu)
def selu(x, out):
    return out.copy_(nn.selu(_wide(x)))


@_unary(op.celu)
def celu(x, alpha, out):
    w = _wide(x)  # torch's own refuses an alpha of 0
    return out.copy_(torch.where(w < 0, torch.expm1(w / alpha) * alpha, w))


@_unary(op.softsign)
def softsign(x, out):
    return out.copy_(nn.softsign(_wide(x)))


@_unary(op.tanhshrink)
def tanhshrink(x, out):
    return out.copy_(nn.tanhshrink(_wide(x)))


@_unary(op.logsigmoid)
def logsigmoid(x, out):
    return out.copy_(nn.logsigmoid(_wide(x)))


@dialect.kernel(op.hardsigmoid, strided=False, when=no_sixth_in_double)
def hardsigmoid(x, out):
    return out.copy_(nn.hardsigmoid(_wide(x)))


@_unary(op.relu6)
def relu6(x, out):
    return out.copy_(nn.relu6(_wide(x)))


@_unary(op.softshrink)
def softshrink(x, lambd, out):
    w, lambd = (
        _wide(x),
        float(lambd),
    )  # torch's own refuses inf, NaN and less than 0
    inside = torch.where(w.isnan(), w, 0.0)
    return out.copy_(torch.where(w > lambd, w - lambd, torch.where(w < -lambd, w + lambd, inside)))


@_unary(op.hardshrink)
def hardshrink(x, lambd, out):
    return out.copy_(nn.hardshrink(_wide(x), lambd))
