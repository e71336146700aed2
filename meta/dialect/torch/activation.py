"""Activation functions and softmax on ATen."""

import torch
import torch.nn.functional as nn

from meta import op
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import compact, number, of_one, widened
from meta.dialect.torch.precision import no_sixth_in_double

of_one(
    {
        op.silu: nn.silu,
        op.mish: nn.mish,
        op.selu: nn.selu,
        op.softsign: nn.softsign,
        op.tanhshrink: nn.tanhshrink,
        op.logsigmoid: nn.logsigmoid,
        op.relu6: nn.relu6,
    },
    wide=True,
)


_ATEN = torch.ops.aten


@compact(op.silu_dx)
def silu_dx(x, dy, out):
    x, dy = widened(x, dy)
    return out.copy_(_ATEN.silu_backward(dy, x))


@compact(op.leaky_relu)
def leaky_relu(x, negative_slope, out):
    return out.copy_(nn.leaky_relu(widened(x), negative_slope))


@compact(op.leaky_relu_dx)
def leaky_relu_dx(x, dy, negative_slope, out):
    x, dy = widened(x, dy)
    return out.copy_(_ATEN.leaky_relu_backward(dy, x, negative_slope, False))


@compact(op.elu)
def elu(x, alpha, out):
    return out.copy_(nn.elu(widened(x), alpha))


@compact(op.elu_dx)
def elu_dx(x, dy, alpha, out):
    x, dy = widened(x, dy)
    return out.copy_(_ATEN.elu_backward(dy, alpha, 1, 1, False, x))


@compact(op.softplus)
def softplus(x, beta, threshold, out):
    return out.copy_(nn.softplus(widened(x), beta, threshold))


@compact(op.softplus_dx)
def softplus_dx(x, dy, beta, threshold, out):
    x, dy = widened(x, dy)
    scaled = x * beta
    return out.copy_(torch.where(scaled > threshold, dy, dy * torch.sigmoid(scaled)))


@dialect.kernel(op.hardswish, strided=False, when=no_sixth_in_double)
def hardswish(x, out):
    return out.copy_(nn.hardswish(widened(x)))


@compact(op.hardswish_dx)
def hardswish_dx(x, dy, out):
    x, dy = widened(x, dy)
    return out.copy_(_ATEN.hardswish_backward(dy, x))


@compact(op.prelu)
def prelu(x, weight, out):
    if x.ndim > 1 and weight.ndim:
        weight = weight.reshape(-1, *[1] * (x.ndim - 2))
    return out.copy_(torch.where(x > 0, x, x * weight.reshape(()) if x.ndim == 0 else x * weight))


@compact(op.glu)
def glu(x, axis, out):
    return out.copy_(nn.glu(widened(x), axis))


def _numbers(x, *numbers):
    """Return numbers as tensors of x's dtype: rounded to it, an int exactly."""
    exact = [torch.float64 if isinstance(n, float) else torch.int64 for n in numbers]
    return [number(n, dtype, x.device).to(x.dtype) for n, dtype in zip(numbers, exact, strict=True)]


@compact(op.threshold)
def threshold(x, threshold, value, out):
    bound, instead = _numbers(x, threshold, value)
    return out.copy_(torch.where(x <= bound, instead, x))


@compact(op.threshold_dx)
def threshold_dx(x, dy, threshold, out):
    (bound,) = _numbers(x, threshold)
    return out.copy_(dy.masked_fill(x <= bound, 0))


@compact(op.clip)
def clip(x, a_min, a_max, out):
    return out.copy_(torch.clamp(x, *_numbers(x, a_min, a_max)))


@compact(op.clip_dx)
def clip_dx(x, dy, a_min, a_max, out):
    low, high = _numbers(x, a_min, a_max)
    return out.copy_(dy.masked_fill(~((x >= low) & (x <= high)), 0))


@compact(op.mish_dx)
def mish_dx(x, dy, out):
    x, dy = widened(x, dy)
    return out.copy_(torch.ops.aten.mish_backward(dy, x))


@compact(op.celu)
def celu(x, alpha, out):
    w = widened(x)  # torch's own refuses an alpha of 0
    return out.copy_(torch.where(w < 0, torch.expm1(w / alpha) * alpha, w))


@dialect.kernel(op.hardsigmoid, strided=False, when=no_sixth_in_double)
def hardsigmoid(x, out):
    return out.copy_(nn.hardsigmoid(widened(x)))


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


@compact(op.relu)
def relu(x):
    return x.clone() if x.dtype == torch.bool else torch.relu(x)


@compact(op.gelu)
def gelu(x, approximate, out):
    wide = widened(x)
    y = torch.nn.functional.gelu(wide, approximate=approximate)
    # ATen's vectors on the CPU make NaN of infinity; x itself is right from about 6 on in float32.
    return out.copy_(torch.where(wide > 12.0, wide, y) if x.device.type == "cpu" else y)


@compact(op.tanh)
def tanh(x):
    return torch.tanh(x)


@compact(op.sigmoid)
def sigmoid(x):
    return torch.sigmoid(x)


@compact(op.relu_dx)
def relu_dx(x, y, dy, out):
    positive = (x if y is None else y) > 0
    return out.copy_(dy.masked_fill(~positive, 0))


@compact(op.gelu_dx)
def gelu_dx(x, dy, approximate, out):
    return out.copy_(torch.ops.aten.gelu_backward(*widened(dy, x), approximate=approximate))


@compact(op.tanh_dx)
def tanh_dx(x, y, dy, out):
    dy, t = widened(dy, y if y is not None else x)
    t = torch.tanh(t) if y is None else t
    return out.copy_(dy * (1 - t * t))


@compact(op.sigmoid_dx)
def sigmoid_dx(x, y, dy, out):
    dy, s = widened(dy, y if y is not None else x)
    s = torch.sigmoid(s) if y is None else s
    return out.copy_(dy * s * (1 - s))
