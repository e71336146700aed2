"""Gradients of activation functions and softmax.

The gradient operators are differentiable in turn: f_dx(x, dy) = dy * f'(x) is linear in dy, and its
derivative by x has the factor f''(x), which is 0 where f is piecewise linear. One that takes x or y
is computed from y if that is given; then y carries the derivative, and that of x is zero.
"""

import math

from meta import op
from meta.base.dtype import is_float
from meta.grad.core import collapse, gradient
from meta.grad.elementwise import second_gradients
from meta.ir.types import TensorType
from meta.op.activation import SELU_ALPHA, SELU_SCALE


def _by_x(x, dy, dy_, second):
    """dy * dy_ * f'' in the dtype of x."""
    return collapse(dy * dy_ * second, x)


@gradient(op.silu)
def silu(x, dy):
    """dx = dy * s * (1 + x * (1 - s)) with s = sigmoid(x)"""
    return op.silu_dx(x, dy)


@gradient(op.silu_dx)
def silu_dx(x, dy, dy_):
    """f'' = s * (1 - s) * (2 + x * (1 - 2 * s))"""
    s = op.sigmoid(x)
    bend = x * (1.0 - s * 2.0) + 2.0
    second = op.sigmoid_dx(None, s, bend)
    return _by_x(x, dy, dy_, second), collapse(op.silu_dx(x, dy_), dy)


@gradient(op.leaky_relu)
def leaky_relu(x, dy, negative_slope):
    """dx = dy where x > 0, else negative_slope * dy"""
    return op.leaky_relu_dx(x, dy, negative_slope)


@gradient(op.leaky_relu_dx)
def leaky_relu_dx(x, dy: TensorType, dy_, negative_slope):
    """Linear in dy; piecewise constant in x."""
    return op.zeros_like(x), collapse(op.leaky_relu_dx(x, dy_, negative_slope), dy)


@gradient(op.elu)
def elu(x, dy, alpha):
    """dx = dy where x > 0, else dy * alpha * exp(x)"""
    return op.elu_dx(x, dy, alpha)


@gradient(op.elu_dx)
def elu_dx(x, dy, dy_, alpha):
    """f'' = alpha * exp(x) for x <= 0, else 0"""
    second = op.where(x > 0, 0.0, op.exp(x) * alpha)
    return _by_x(x, dy, dy_, second), collapse(op.elu_dx(x, dy_, alpha), dy)


@gradient(op.softplus)
def softplus(x, dy, beta, threshold):
    """dx = dy * sigmoid(beta * x), dy beyond the threshold"""
    return op.softplus_dx(x, dy, beta, threshold)


@gradient(op.softplus_dx)
def softplus_dx(x, dy, dy_, beta, threshold):
    """f'' = beta * s * (1 - s) with s = sigmoid(beta * x), 0 beyond the threshold"""
    scaled = x * beta
    s = op.sigmoid(scaled)
    bend = s * (1.0 - s) * beta
    second = op.where(scaled > threshold, 0.0, bend)
    return _by_x(x, dy, dy_, second), collapse(op.softplus_dx(x, dy_, beta, threshold), dy)


@gradient(op.hardswish)
def hardswish(x, dy):
    """dx = 0 for x <= -3, dy for x >= 3, else dy * (x / 3 + 1/2)"""
    return op.hardswish_dx(x, dy)


@gradient(op.hardswish_dx)
def hardswish_dx(x, dy, dy_):
    """f'' = 1/3 between -3 and 3"""
    inside = op.abs(x) < 3.0
    second = op.where(inside, op.ones_like(x) * (1 / 3), 0.0)
    return _by_x(x, dy, dy_, second), collapse(op.hardswish_dx(x, dy_), dy)


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
    return op.concatenate((dy * s, op.sigmoid_dx(None, s, dy * a)), axis)


@gradient(op.threshold)
def threshold(x, dy, threshold):
    """dx = 0 where x <= threshold, else dy"""
    return op.threshold_dx(x, dy, threshold)


@gradient(op.threshold_dx)
def threshold_dx(x, dy: TensorType, dy_, threshold):
    """Linear in dy; piecewise constant in x."""
    return op.zeros_like(x), collapse(op.threshold_dx(x, dy_, threshold), dy)


@gradient(op.clip)
def clip(x, dy, a_min, a_max):
    """dx = dy where a_min <= x <= a_max, else 0"""
    return op.clip_dx(x, dy, a_min, a_max) if is_float(x.dtype) else None


@gradient(op.clip_dx)
def clip_dx(x, dy: TensorType, dy_, a_min, a_max):
    """Linear in dy; piecewise constant in x."""
    return op.zeros_like(x), collapse(op.clip_dx(x, dy_, a_min, a_max), dy)


@gradient(op.mish)
def mish(x, dy):
    """dx = dy * (w + x * (1 - w**2) * s) with w = tanh(softplus(x)), s = sigmoid(x)"""
    return op.mish_dx(x, dy)


@gradient(op.mish_dx)
def mish_dx(x, dy, dy_):
    """f'' = w' * (2 + x * (1 - s - 2 * w * s)) with w' = (1 - w**2) * s"""
    w, s = op.tanh(op.softplus(x)), op.sigmoid(x)
    slope = op.tanh_dx(None, w, s)
    bend = 1.0 - s - w * s * 2.0
    second = slope * (x * bend + 2.0)
    by_x = collapse(dy * dy_ * second, x)
    return by_x, collapse(op.mish_dx(x, dy_), dy)


@gradient(op.selu)
def selu(x, dy):
    """dx = dy * scale where x > 0, else dy * scale * alpha * exp(x)"""
    return op.elu_dx(x, dy * SELU_SCALE, SELU_ALPHA)


@gradient(op.celu)
def celu(x, dy, alpha):
    """dx = dy where x > 0, else dy * exp(x / alpha)"""
    return op.elu_dx(x / alpha, dy, 1.0)


@gradient(op.softsign)
def softsign(x, dy):
    """dx = dy / (1 + |x|)**2"""
    wide = op.abs(x) + 1.0
    return dy / (wide * wide)


@gradient(op.tanhshrink)
def tanhshrink(x, dy):
    """dx = dy * tanh(x)**2"""
    t = op.tanh(x)
    return dy * (t * t)


@gradient(op.logsigmoid)
def logsigmoid(x, dy):
    """dx = dy * sigmoid(-x)"""
    return dy * op.sigmoid(-x)


@gradient(op.hardsigmoid)
def hardsigmoid(x, dy):
    """dx = dy / 6 where -3 < x < 3, else 0"""
    return op.where(op.abs(x) < 3.0, dy * (1 / 6), 0)


@gradient(op.relu6)
def relu6(x, dy):
    """dx = dy where 0 < x < 6, else 0"""
    return op.where(op.logical_and(x > 0.0, x < 6.0), dy, 0)


@gradient(op.softshrink, op.hardshrink)
def shrink(x, dy, lambd):
    """dx = dy where |x| > lambd, else 0"""
    return op.where(op.abs(x) > lambd, dy, 0)


@gradient(op.softmax)
def softmax(y, dy, axis):
    return op.softmax_dx(y, dy, axis)


@gradient(op.log_softmax)
def log_softmax(y, dy, axis):
    return op.log_softmax_dx(y, dy, axis)


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


@gradient(op.relu)
def relu(y, dy):
    """dx = dy where y > 0; at the kink 0, as torch."""
    return op.relu_dx(None, y, dy)


@gradient(op.gelu)
def gelu(x, dy, approximate):
    """dx = dy * (P(x) + x * p(x)), or the derivative of the approximation"""
    return op.gelu_dx(x, None, dy, approximate)


@gradient(op.tanh)
def tanh(y, dy):
    """dx = dy * (1 - y**2)"""
    return op.tanh_dx(None, y, dy)


@gradient(op.sigmoid)
def sigmoid(y, dy):
    """dx = dy * y * (1 - y)"""
    return op.sigmoid_dx(None, y, dy)


@gradient(op.relu_dx)
def relu_dx(x, y, dy: TensorType, dy_):
    """Linear in dy; piecewise constant in x and y."""
    dx, d_y = (None if t is None else op.zeros_like(t) for t in (x, y))
    return dx, d_y, collapse(op.relu_dx(x, y, dy_), dy)


@gradient(op.gelu_dx)
def gelu_dx(x, y, dy, dy_, approximate):
    """gelu'' = (2 - x**2) * p(x) with p(x) = exp(-x**2 / 2) / sqrt(2 * pi)"""
    second = _gelu_second(x) if approximate == "none" else _gelu_tanh_second(x)
    dx, _ = second_gradients(x, None, dy, dy_, second)
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


@gradient(op.tanh_dx)
def tanh_dx(x, y, dy, dy_):
    """By y: f' = 1 - y**2, so -2 * y. By x: -2 * t * (1 - t**2) with t = tanh(x)."""
    t = op.tanh(x) if y is None else y
    derivative = t * -2.0
    if y is None:
        derivative = op.tanh_dx(None, t, derivative)
    return *second_gradients(x, y, dy, dy_, derivative), collapse(op.tanh_dx(None, t, dy_), dy)


@gradient(op.sigmoid_dx)
def sigmoid_dx(x, y, dy, dy_):
    """By y: f' = y * (1 - y), so 1 - 2 * y. By x: (1 - 2 * s) * s * (1 - s) with s = sigmoid(x)."""
    s = op.sigmoid(x) if y is None else y
    derivative = 1.0 - s * 2.0
    if y is None:
        derivative = op.sigmoid_dx(None, s, derivative)
    return *second_gradients(x, y, dy, dy_, derivative), collapse(op.sigmoid_dx(None, s, dy_), dy)
