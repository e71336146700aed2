"""Smooth activation functions and shrinkages on ATen, computed in float32 at least."""

import torch
import torch.nn.functional as nn

from meta import op
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import compact, widened
from meta.dialect.torch.precision import no_sixth_in_double


@compact(op.mish)
def mish(x, out):
    return out.copy_(nn.mish(widened(x)))


@compact(op.mish_dx)
def mish_dx(x, dy, out):
    x, dy = widened(x, dy)
    return out.copy_(torch.ops.aten.mish_backward(dy, x))


@compact(op.selu)
def selu(x, out):
    return out.copy_(nn.selu(widened(x)))


@compact(op.celu)
def celu(x, alpha, out):
    w = widened(x)  # torch's own refuses an alpha of 0
    return out.copy_(torch.where(w < 0, torch.expm1(w / alpha) * alpha, w))


@compact(op.softsign)
def softsign(x, out):
    return out.copy_(nn.softsign(widened(x)))


@compact(op.tanhshrink)
def tanhshrink(x, out):
    return out.copy_(nn.tanhshrink(widened(x)))


@compact(op.logsigmoid)
def logsigmoid(x, out):
    return out.copy_(nn.logsigmoid(widened(x)))


@dialect.kernel(op.hardsigmoid, strided=False, when=no_sixth_in_double)
def hardsigmoid(x, out):
    return out.copy_(nn.hardsigmoid(widened(x)))


@compact(op.relu6)
def relu6(x, out):
    return out.copy_(nn.relu6(widened(x)))


@compact(op.softshrink)
def softshrink(x, lambd, out):
    w, lambd = (
        widened(x),
        float(lambd),
    )  # torch's own refuses inf, NaN and less than 0
    inside = torch.where(w.isnan(), w, 0.0)
    return out.copy_(torch.where(w > lambd, w - lambd, torch.where(w < -lambd, w + lambd, inside)))


@compact(op.hardshrink)
def hardshrink(x, lambd, out):
    return out.copy_(nn.hardshrink(widened(x), lambd))
