"""Softmax and bias on ATen. Add a kernel of the family here."""

import torch

from meta import op
from meta.dialect.torch import torch as dialect


@dialect.kernel(op.softmax)
def softmax(x, axis):
    return torch.softmax(x, axis).contiguous()


@dialect.kernel(op.log_softmax)
def log_softmax(x, axis):
    return torch.log_softmax(x, axis).contiguous()


@dialect.kernel(op.softmax_dx)
def softmax_dx(y, dy, axis):
    return torch.ops.aten._softmax_backward_data(dy, y, axis, y.dtype).contiguous()


@dialect.kernel(op.log_softmax_dx)
def log_softmax_dx(y, dy, axis):
    return torch.ops.aten._log_softmax_backward_data(dy, y, axis, y.dtype).contiguous()


@dialect.kernel(op.bias_add)
def bias_add(x, bias, axis, out):
    shape = [1] * x.ndim
    shape[axis] = -1
    torch.add(x, bias.reshape(shape), out=out)
