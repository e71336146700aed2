"""Activation functions and softmax on ATen."""

from functools import partial

import torch
import torch.nn.functional as nn

from meta import op
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.aten_calls import functions_of
from meta.dialect.torch.operands import (
    all_rounded_once,
    kernels,
    no_sixth_in_double,
    of_unary,
    rounded_number,
    rounded_once,
)

aten = torch.ops.aten

of_unary(functions_of(op.tanh, op.sigmoid))
all_rounded_once(functions_of(op.silu, op.mish, op.selu, op.hardshrink, op.logsigmoid, op.relu6))
all_rounded_once(functions_of(op.leaky_relu, op.elu, op.softplus, op.glu))
all_rounded_once(functions_of(op.hardswish, op.hardsigmoid), when=no_sixth_in_double)
all_rounded_once(
    {
        op.softsign: nn.softsign,
        op.tanhshrink: nn.tanhshrink,
        op.silu_dx: lambda x, dy: aten.silu_backward(dy, x),
        op.mish_dx: lambda x, dy: aten.mish_backward(dy, x),
        op.leaky_relu_dx: lambda x, dy, slope: aten.leaky_relu_backward(dy, x, slope, False),
        op.elu_dx: lambda x, dy, alpha: aten.elu_backward(dy, alpha, 1, 1, False, x),
        op.hardswish_dx: lambda x, dy: aten.hardswish_backward(dy, x),
        op.gelu_dx: lambda x, y, dy, form: aten.gelu_backward(dy, x, approximate=form),
    }
)


@rounded_once(op.softplus_dx)
def softplus_dx(x, dy, beta, threshold):
    scaled = x * beta
    return torch.where(scaled > threshold, dy, dy * torch.sigmoid(scaled))


@rounded_once(op.celu)
def celu(x, alpha):  # torch's own refuses an alpha of 0
    return torch.where(x < 0, torch.expm1(x / alpha) * alpha, x)


@rounded_once(op.softshrink)
def softshrink(x, lambd):  # torch's own refuses inf, NaN and less than 0
    lambd = float(lambd)
    inside = torch.where(x.isnan(), x, 0.0)
    return torch.where(x > lambd, x - lambd, torch.where(x < -lambd, x + lambd, inside))


@rounded_once(op.gelu)
def gelu(x, approximate):
    y = nn.gelu(x, approximate=approximate)
    # ATen's vectors on the CPU make NaN of infinity; x itself is right from about 6 on in float32.
    return torch.where(x > 12.0, x, y) if x.device.type == "cpu" else y


@rounded_once(op.tanh_dx)
def tanh_dx(x, y, dy):
    y = torch.tanh(x) if y is None else y
    return dy * (1 - y * y)


@rounded_once(op.sigmoid_dx)
def sigmoid_dx(x, y, dy):
    y = torch.sigmoid(x) if y is None else y
    return dy * y * (1 - y)


@dialect.kernel(op.relu, strided=False)
def relu(x):
    return x.clone() if x.dtype == torch.bool else torch.relu(x)


@dialect.kernel(op.relu_dx, strided=False)
def relu_dx(x, y, dy, out):
    return out.copy_(dy.masked_fill((x if y is None else y) <= 0, 0))


@dialect.kernel(op.prelu, strided=False)
def prelu(x, weight, out):
    if x.ndim > 1 and weight.ndim:
        weight = weight.reshape(-1, *[1] * (x.ndim - 2))
    return out.copy_(torch.where(x > 0, x, x * weight.reshape(()) if x.ndim == 0 else x * weight))


def _numbers(x, *numbers):
    return [rounded_number(n, x.dtype, x.device) for n in numbers]


@dialect.kernel(op.threshold, strided=False)
def threshold(x, threshold, value, out):
    bound, instead = _numbers(x, threshold, value)
    return out.copy_(torch.where(x <= bound, instead, x))


@dialect.kernel(op.threshold_dx, strided=False)
def threshold_dx(x, dy, threshold, out):
    (bound,) = _numbers(x, threshold)
    return out.copy_(dy.masked_fill(x <= bound, 0))


@dialect.kernel(op.clip, strided=False)
def clip(x, min, max, out):
    return out.copy_(torch.clamp(x, *_numbers(x, min, max)))


@dialect.kernel(op.clip_dx, strided=False)
def clip_dx(x, dy, min, max, out):
    low, high = _numbers(x, min, max)
    return out.copy_(dy.masked_fill(~((x >= low) & (x <= high)), 0))


def _along(function, x, axis):
    return function(x, axis).contiguous()


def _along_dx(function, y, dy, axis):
    return function(dy, y, axis, y.dtype).contiguous()


kernels(
    {
        op.softmax: partial(_along, torch.softmax),
        op.log_softmax: partial(_along, torch.log_softmax),
        op.softmax_dx: partial(_along_dx, aten._softmax_backward_data),
        op.log_softmax_dx: partial(_along_dx, aten._log_softmax_backward_data),
    }
)
