"""Gradients of the smooth activation functions, in the order of `meta/op/activation_smooth.py`.

All but `mish` are short in other operators, and so differentiable as often as these are.
"""

from meta import op
from meta.grad.core import collapse, gradient
from meta.op.activation_smooth import SELU_ALPHA, SELU_SCALE


@gradient(op.mish)
def mish(x, dy):
    """dx = dy * (w + x * (1 - w**2) * s) with w = tanh(softplus(x)), s = sigmoid(x)"""
    return op.mish_dx(x, dy)


@gradient(op.mish_dx)
def mish_dx(x, dy, dy_):
    """f'' = w' * (2 + x * (1 - s - 2 * w * s)) with w' = (1 - w**2) * s"""
    w, s = op.tanh(op.softplus(x)), op.sigmoid(x)
    slope = op.tanh_dx(None, w, s)
    bend = op.subtract(op.subtract(1.0, s), op.multiply(op.multiply(w, s), 2.0))
    second = op.multiply(slope, op.add(op.multiply(x, bend), 2.0))
    by_x = collapse(op.multiply(op.multiply(dy, dy_), second), x)
    return by_x, collapse(op.mish_dx(x, dy_), dy)


@gradient(op.selu)
def selu(x, dy):
    """dx = dy * scale where x > 0, else dy * scale * alpha * exp(x)"""
    return op.elu_dx(x, op.multiply(dy, SELU_SCALE), SELU_ALPHA)


@gradient(op.celu)
def celu(x, dy, alpha):
    """dx = dy where x > 0, else dy * exp(x / alpha)"""
    return op.elu_dx(op.divide(x, alpha), dy, 1.0)


@gradient(op.softsign)
def softsign(x, dy):
    """dx = dy / (1 + |x|)**2"""
    wide = op.add(op.abs(x), 1.0)
    return op.divide(dy, op.multiply(wide, wide))


@gradient(op.tanhshrink)
def tanhshrink(x, dy):
    """dx = dy * tanh(x)**2"""
    t = op.tanh(x)
    return op.multiply(dy, op.multiply(t, t))


@gradient(op.logsigmoid)
def logsigmoid(x, dy):
    """dx = dy * sigmoid(-x)"""
    return op.multiply(dy, op.sigmoid(op.negative(x)))


@gradient(op.hardsigmoid)
def hardsigmoid(x, dy):
    """dx = dy / 6 where -3 < x < 3, else 0"""
    return op.where(op.less(op.abs(x), 3.0), op.multiply(dy, 1 / 6), 0)


@gradient(op.relu6)
def relu6(x, dy):
    """dx = dy where 0 < x < 6, else 0"""
    return op.where(op.logical_and(op.greater(x, 0.0), op.less(x, 6.0)), dy, 0)


@gradient(op.softshrink, op.hardshrink)
def shrink(x, dy, lambd):
    """dx = dy where |x| > lambd, else 0"""
    return op.where(op.greater(op.abs(x), lambd), dy, 0)
