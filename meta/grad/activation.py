"""Gradients of activation functions and softmax.

The gradient operators are differentiable in turn: f_dx(x, dy) = dy * f'(x) is linear in dy, and its
derivative by x has the factor f''(x), which is 0 where f is piecewise linear. One that takes x or y
is computed from y if that is given; then y carries the derivative, and that of x is zero.
"""

import math

from meta import op
from meta.base.dtype import is_float
from meta.grad.core import collapse, gradient, gradients, holomorphic
from meta.grad.elementwise import by_result
from meta.ir.types import TensorType
from meta.op.activation import SELU_ALPHA, SELU_SCALE

gradients(
    {
        op.silu: lambda x, dy: op.silu_dx(x, dy),
        op.leaky_relu: lambda x, dy, *options: op.leaky_relu_dx(x, dy, *options),
        op.elu: lambda x, dy, alpha: op.elu_dx(x, dy, alpha),
        op.softplus: lambda x, dy, *options: op.softplus_dx(x, dy, *options),
        op.hardswish: lambda x, dy: op.hardswish_dx(x, dy),
        op.threshold: lambda x, dy, threshold: op.threshold_dx(x, dy, threshold),
        op.mish: lambda x, dy: op.mish_dx(x, dy),
        op.selu: lambda x, dy: op.elu_dx(x, dy * SELU_SCALE, SELU_ALPHA),
        op.celu: lambda x, dy, alpha: op.elu_dx(x / alpha, dy, 1.0),
        op.logsigmoid: lambda x, dy: dy * op.sigmoid(-x),
        op.hardsigmoid: lambda x, dy: op.where(op.abs(x) < 3.0, dy * (1 / 6), 0),
        op.relu6: lambda x, dy: op.where(op.logical_and(x > 0.0, x < 6.0), dy, 0),
        op.softshrink: lambda x, dy, lambd: op.where(op.abs(x) > lambd, dy, 0),
        op.hardshrink: lambda x, dy, lambd: op.where(op.abs(x) > lambd, dy, 0),
        op.softmax: lambda y, dy, axis: op.softmax_dx(y, dy, axis),
        op.log_softmax: lambda y, dy, axis: op.log_softmax_dx(y, dy, axis),
        op.relu: lambda y, dy: op.relu_dx(None, y, dy),  # at the kink 0, as torch
        op.gelu: lambda x, dy, approximate: op.gelu_dx(x, None, dy, approximate),
        op.tanh: holomorphic(lambda y, dy: op.tanh_dx(None, y, dy)),
        op.sigmoid: lambda y, dy: op.sigmoid_dx(None, y, dy),
    }
)


@gradient(op.clip)
def clip(x, dy, min, max):
    return op.clip_dx(x, dy, min, max) if is_float(x.dtype) else None


def _piecewise(backward):
    """Register the gradient of ``backward``: linear in dy, piecewise constant in x."""

    @gradient(backward)
    def of_dx(x, dy: TensorType, dy_, *options):
        return op.zeros_like(x), collapse(backward(x, dy_, *options), dy)


def _register_double_backward(backward, second):
    """Register the gradient of ``backward``: linear in dy; ``second(x, *options)`` is f''."""

    @gradient(backward)
    def of_dx(x, dy, dy_, *options):
        bend = second(x, *options)
        return collapse(dy * dy_ * bend, x), collapse(backward(x, dy_, *options), dy)


def _silu_second(x):
    """s * (1 - s) * (2 + x * (1 - 2 * s)) with s = sigmoid(x)"""
    s = op.sigmoid(x)
    return op.sigmoid_dx(None, s, x * (1.0 - s * 2.0) + 2.0)


def _softplus_second(x, beta, threshold):
    """beta * s * (1 - s) with s = sigmoid(beta * x), 0 beyond the threshold"""
    scaled = x * beta
    s = op.sigmoid(scaled)
    return op.where(scaled > threshold, 0.0, s * (1.0 - s) * beta)


def _mish_second(x):
    """w' * (2 + x * (1 - s - 2 * w * s)), w = tanh(softplus(x)), w' = (1 - w**2) * s"""
    w, s = op.tanh(op.softplus(x)), op.sigmoid(x)
    slope = op.tanh_dx(None, w, s)
    return slope * (x * (1.0 - s - w * s * 2.0) + 2.0)


for _dx in (op.leaky_relu_dx, op.threshold_dx, op.clip_dx):
    _piecewise(_dx)
_register_double_backward(op.silu_dx, _silu_second)
_register_double_backward(op.elu_dx, lambda x, alpha: op.where(x > 0, 0.0, op.exp(x) * alpha))
_register_double_backward(op.softplus_dx, _softplus_second)
_register_double_backward(
    op.hardswish_dx, lambda x: op.where(op.abs(x) < 3.0, op.ones_like(x) * (1 / 3), 0.0)
)
_register_double_backward(op.mish_dx, _mish_second)


@gradient(op.prelu)
def prelu(x, weight, dy):
    """dx = dy where x > 0, else weight * dy; dweight = the sum of x * dy where x <= 0."""
    # The weight's axis meets axis 1 of x; one of extent 1 goes where x has none.
    shape = weight.shape if x.ndim == 1 or not weight.ndim else (*weight.shape, *[1] * (x.ndim - 2))
    spread = op.reshape(weight, shape if x.ndim else ())
    positive = x > 0
    dx = op.where(positive, dy, dy * spread)
    dw = collapse(op.where(positive, 0.0, dy * x), spread)
    return dx, op.reshape(dw, weight.shape)


@gradient(op.glu)
def glu(x, dy, axis):
    """da = dy * s, db = dy * a * s * (1 - s) with s = sigmoid(b)"""
    a, b = op.split(x, 2, axis)
    s = op.sigmoid(b)
    return op.concat((dy * s, op.sigmoid_dx(None, s, dy * a)), axis)


@gradient(op.softsign)
def softsign(x, dy):
    wide = op.abs(x) + 1.0
    return dy / (wide * wide)


@gradient(op.tanhshrink)
def tanhshrink(x, dy):
    t = op.tanh(x)
    return dy * (t * t)


@gradient(op.softmax_dx)
def softmax_dx(y, dy, dy_, axis):
    """For dx = y (dy - s), s = sum(y dy), t = sum(y dy_): dy_ (dy - s) - dy t; y (dy_ - t)."""
    s = op.sum(y * dy, axis, 1)
    t = op.sum(y * dy_, axis, 1)
    first = dy_ * (dy - s) - dy * t
    return first, op.softmax_dx(y, dy_, axis)


@gradient(op.log_softmax_dx)
def log_softmax_dx(y, dy, dy_, axis):
    """For dx = dy - p sum(dy), p = exp(y): -dy_ p sum(dy); dy_ - sum(dy_ p)."""
    weighted = dy_ * op.exp(y)
    first = -(weighted * op.sum(dy, axis, 1))
    return first, dy_ - op.sum(weighted, axis, 1)


@gradient(op.relu_dx)
def relu_dx(x, y, dy: TensorType, dy_):
    """Linear in dy; piecewise constant in x and y."""
    dx, d_y = (None if t is None else op.zeros_like(t) for t in (x, y))
    return dx, d_y, collapse(op.relu_dx(x, y, dy_), dy)


@gradient(op.gelu_dx)
def gelu_dx(x, y, dy, dy_, approximate):
    """gelu'' = (2 - x**2) * p(x) with p(x) = exp(-x**2 / 2) / sqrt(2 * pi)"""
    second = _gelu_second(x) if approximate == "none" else _gelu_tanh_second(x)
    dx = collapse(dy * dy_ * second, x)
    linear = collapse(op.gelu_dx(x, None, dy_, approximate), dy)
    return dx, None if y is None else op.zeros_like(y), linear


def _gelu_second(x):
    x2 = x * x
    density = op.exp(x2 * -0.5) * (1 / math.sqrt(2 * math.pi))
    return (2.0 - x2) * density


def _gelu_tanh_second(x):
    """(1 - t**2) * (u' + x / 2 * (u'' - 2 * t * u'**2)) with t = tanh(u), u = a * (x + b * x**3)"""
    a, b = math.sqrt(2 / math.pi), 0.044715
    x2 = x * x
    t = op.tanh((x2 * b + 1.0) * x * a)
    slope = (x2 * (3 * b) + 1.0) * a
    steep = t * -2.0 * (slope * slope)
    bend = x * (6 * a * b) + steep
    return op.tanh_dx(None, t, slope + x * 0.5 * bend)


by_result(op.tanh, op.tanh_dx, lambda y: y * -2.0)
by_result(op.sigmoid, op.sigmoid_dx, lambda y: 1.0 - y * 2.0)
