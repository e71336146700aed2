"""Gradients of the elementwise operators of one tensor, in the order of `meta/op/unary.py`.

The gradient operators (``relu_dx``, ...) are differentiable in turn. Each of them is computed from
y if that is given; then y carries the derivative, and that of x is zero.
"""

import math

from meta import op
from meta.grad.core import collapse, gradient, not_differentiable
from meta.ir.types import TensorType


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


@gradient(op.erf)
def erf(x, dy):
    """dx = dy * 2 / sqrt(pi) * exp(-x**2)"""
    return op.erf_dx(x, None, dy)


@gradient(op.sqrt)
def sqrt(y, dy):
    """dx = dy / (2 * y)"""
    return op.sqrt_dx(None, y, dy)


def _second(x, y, dy, dy_, derivative):
    """Return those by x and y of f_dx = dy * f', where f' is computed from y if given, else x.

    ``derivative`` is that of f' by what it was computed from.
    """
    argument = x if y is None else y
    through = collapse(op.multiply(op.multiply(dy, dy_), derivative), argument)
    if y is None:
        return through, None
    return None if x is None else op.zeros_like(x), through


@gradient(op.relu_dx)
def relu_dx(x, y, dy: TensorType, dy_):
    """Linear in dy; piecewise constant in x and y."""
    dx, d_y = (None if t is None else op.zeros_like(t) for t in (x, y))
    return dx, d_y, collapse(op.relu_dx(x, y, dy_), dy)


@gradient(op.gelu_dx)
def gelu_dx(x, y, dy, dy_, approximate):
    """gelu'' = (2 - x**2) * p(x) with p(x) = exp(-x**2 / 2) / sqrt(2 * pi)"""
    second = _gelu_second(x) if approximate == "none" else _gelu_tanh_second(x)
    dx, _ = _second(x, None, dy, dy_, second)
    linear = collapse(op.gelu_dx(x, None, dy_, approximate), dy)
    return dx, None if y is None else op.zeros_like(y), linear


def _gelu_second(x):
    x2 = op.multiply(x, x)
    density = op.multiply(op.exp(op.multiply(x2, -0.5)), 1 / math.sqrt(2 * math.pi))
    return op.multiply(op.subtract(2.0, x2), density)


def _gelu_tanh_second(x):
    """(1 - t**2) * (u' + x / 2 * (u'' - 2 * t * u'**2)) with t = tanh(u), u = a * (x + b * x**3)"""
    a, b = math.sqrt(2 / math.pi), 0.044715
    x2 = op.multiply(x, x)
    t = op.tanh(op.multiply(op.multiply(op.add(op.multiply(x2, b), 1.0), x), a))
    slope = op.multiply(op.add(op.multiply(x2, 3 * b), 1.0), a)
    steep = op.multiply(op.multiply(t, -2.0), op.multiply(slope, slope))
    bend = op.add(op.multiply(x, 6 * a * b), steep)
    return op.tanh_dx(None, t, op.add(slope, op.multiply(op.multiply(x, 0.5), bend)))


@gradient(op.tanh_dx)
def tanh_dx(x, y, dy, dy_):
    """By y: f' = 1 - y**2, so -2 * y. By x: -2 * t * (1 - t**2) with t = tanh(x)."""
    t = op.tanh(x) if y is None else y
    derivative = op.multiply(t, -2.0)
    if y is None:
        derivative = op.tanh_dx(None, t, derivative)
    return *_second(x, y, dy, dy_, derivative), collapse(op.tanh_dx(None, t, dy_), dy)


@gradient(op.sigmoid_dx)
def sigmoid_dx(x, y, dy, dy_):
    """By y: f' = y * (1 - y), so 1 - 2 * y. By x: (1 - 2 * s) * s * (1 - s) with s = sigmoid(x)."""
    s = op.sigmoid(x) if y is None else y
    derivative = op.subtract(1.0, op.multiply(s, 2.0))
    if y is None:
        derivative = op.sigmoid_dx(None, s, derivative)
    return *_second(x, y, dy, dy_, derivative), collapse(op.sigmoid_dx(None, s, dy_), dy)


@gradient(op.erf_dx)
def erf_dx(x, y, dy, dy_):
    """erf'' = -2 * x * erf'"""
    second = op.erf_dx(x, None, op.multiply(x, -2.0))
    dx, _ = _second(x, None, dy, dy_, second)
    return dx, None if y is None else op.zeros_like(y), collapse(op.erf_dx(x, None, dy_), dy)


@gradient(op.sqrt_dx)
def sqrt_dx(x, y, dy, dy_):
    """By y: f' = 1 / (2 * y), so -1 / (2 * y**2). By x: -1 / (4 * x * sqrt(x))."""
    root = op.sqrt(x) if y is None else y
    derivative = op.divide(-0.5, op.multiply(root, root))
    if y is None:
        derivative = op.sqrt_dx(None, root, derivative)
    return *_second(x, y, dy, dy_, derivative), collapse(op.sqrt_dx(None, root, dy_), dy)


@gradient(op.exp)
def exp(y, dy):
    """dx = dy * y"""
    return op.multiply(dy, y)


@gradient(op.log)
def log(x, dy):
    """dx = dy / x"""
    return op.divide(dy, x)


@gradient(op.rsqrt)
def rsqrt(y, dy):
    """dx = -dy / 2 * x**(-3/2) = -dy / 2 * y**3"""
    return op.multiply(op.multiply(dy, -0.5), op.multiply(op.multiply(y, y), y))


@gradient(op.negative)
def negative(dy):
    """dx = -dy"""
    return op.negative(dy)


@gradient(op.abs)
def abs(x, dy):
    """dx = dy * sign(x); at the kink 0, as torch."""
    return op.where(op.greater(x, 0), dy, op.where(op.less(x, 0), op.negative(dy), 0))


not_differentiable(op.logical_not, why="the result is bool")


@gradient(op.copy)
def copy(dy):
    """dx = dy"""
    return dy
