"""Gradients of softmax and bias. Those of the larger groups: `conv.py`, `pool.py`, `norm.py`."""

from meta import op
from meta.grad.core import gradient


@gradient(op.softmax)
def softmax(y, dy, axis):
    return op.softmax_dx(y, dy, axis)


@gradient(op.log_softmax)
def log_softmax(y, dy, axis):
    return op.log_softmax_dx(y, dy, axis)


@gradient(op.softmax_dx)
def softmax_dx(y, dy, dy_, axis):
    """For dx = y (dy - s), s = sum(y dy), t = sum(y dy_): dy_ (dy - s) - dy t; y (dy_ - t)."""
    s = op.sum(op.multiply(y, dy), axis, 1)
    t = op.sum(op.multiply(y, dy_), axis, 1)
    first = op.subtract(op.multiply(dy_, op.subtract(dy, s)), op.multiply(dy, t))
    return first, op.softmax_dx(y, dy_, axis)


@gradient(op.log_softmax_dx)
def log_softmax_dx(y, dy, dy_, axis):
    """For dx = dy - p sum(dy), p = exp(y): -dy_ p sum(dy); dy_ - sum(dy_ p)."""
    weighted = op.multiply(dy_, op.exp(y))
    first = op.negative(op.multiply(weighted, op.sum(dy, axis, 1)))
    return first, op.subtract(dy_, op.sum(weighted, axis, 1))


@gradient(op.bias_add)
def bias_add(dy, axis):
    return dy, op.sum(dy, axis, 0, True)
