"""Gradients of exponentials and logarithms, in the order of `meta/op/explog.py`."""

import math

from meta import op
from meta.grad.core import gradient


@gradient(op.log2)
def log2(x, dy):
    """dx = dy / (x * log(2))"""
    return op.divide(dy, op.multiply(x, math.log(2)))


@gradient(op.log10)
def log10(x, dy):
    """dx = dy / (x * log(10))"""
    return op.divide(dy, op.multiply(x, math.log(10)))


@gradient(op.log1p)
def log1p(x, dy):
    """dx = dy / (1 + x)"""
    return op.divide(dy, op.add(x, 1.0))


@gradient(op.expm1)
def expm1(y, dy):
    """dx = dy * (y + 1)"""
    return op.multiply(dy, op.add(y, 1.0))


@gradient(op.reciprocal)
def reciprocal(y, dy):
    """dx = -dy * y**2"""
    return op.negative(op.multiply(dy, op.multiply(y, y)))
