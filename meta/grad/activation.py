"""Gradients of the activation functions, in the order of `meta/op/activation.py`.

The gradient operators are differentiable in turn: f_dx(x, dy) = dy * f'(x) is linear in dy, and its
derivative by x has the factor f''(x), which is 0 where f is made of straight lines.
"""

from meta import op
from meta.base.dtype import is_float
from meta.grad.core import collapse, gradient
from meta.ir.types import TensorType


def _by_x(x, dy, dy_, second):
    """dy * dy_ * f'' in the dtype of x."""
    return collapse(op.multiply(op.multiply(dy, dy_), second), x)


@gradient(op.silu)
def silu(x, dy):
    """dx = dy * s * (1 + x * (1 - s)) with s = sigmoid(x)"""
    return op.silu_dx(x, dy)


@gradient(op.silu_dx)
def silu_dx(x, dy, dy_):
    """f'' = s * (1 - s) * (2 + x * (1 - 2 * s))"""
    s = op.sigmoid(x)
    bend = op.add(op.multiply(x, op.subtract(1.0, op.multiply(s, 2.0))), 2.0)
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
    second = op.where(op.greater(x, 0), 0.0, op.multiply(op.exp(x), alpha))
    return _by_x(x, dy, dy_, second), collapse(op.elu_dx(x, dy_, alpha), dy)


@gradient(op.softplus)
def softplus(x, dy, beta, threshold):
    """dx = dy * sigmoid(beta * x), dy beyond the threshold"""
    return op.softplus_dx(x, dy, beta, threshold)


@gradient(op.softplus_dx)
def softplus_dx(x, dy, dy_, beta, threshold):
    """f'' = beta * s * (1 - s) with s = sigmoid(beta * x), 0 beyond the threshold"""
    scaled = op.multiply(x, beta)
    s = op.sigmoid(scaled)
    bend = op.multiply(op.multiply(s, op.subtract(1.0, s)), beta)
    second = op.where(op.greater(scaled, threshold), 0.0, bend)
    return _by_x(x, dy, dy_, second), collapse(op.softplus_dx(x, dy_, beta, threshold), dy)


@gradient(op.hardswish)
def hardswish(x, dy):
    """dx = 0 for x <= -3, dy for x >= 3, else dy * (x / 3 + 1/2)"""
    return op.hardswish_dx(x, dy)


@gradient(op.hardswish_dx)
def hardswish_dx(x, dy, dy_):
    """f'' = 1/3 between -3 and 3"""
    inside = op.less(op.abs(x), 3.0)
    second = op.where(inside, op.multiply(op.ones_like(x), 1 / 3), 0.0)
    return _by_x(x, dy, dy_, second), collapse(op.hardswish_dx(x, dy_), dy)


@gradient(op.prelu)
def prelu(x, weight, dy):
    """dx = dy where x > 0, else weight * dy; dweight = the sum of x * dy where x <= 0."""
    # The weight's axis meets axis 1 of x; one of extent 1 goes where x has none.
    shape = weight.shape if x.ndim == 1 or not weight.ndim else (*weight.shape, *[1] * (x.ndim - 2))
    spread = op.reshape(weight, shape if x.ndim else ())
    positive = op.greater(x, 0)
    dx = op.where(positive, dy, op.multiply(dy, spread))
    dw = collapse(op.where(positive, 0.0, op.multiply(dy, x)), spread)
    return dx, op.reshape(dw, weight.shape)


@gradient(op.glu)
def glu(x, dy, axis):
    """da = dy * s, db = dy * a * s * (1 - s) with s = sigmoid(b)"""
    a, b = op.split(x, 2, axis)
    s = op.sigmoid(b)
    return op.concatenate((op.multiply(dy, s), op.sigmoid_dx(None, s, op.multiply(dy, a))), axis)


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
