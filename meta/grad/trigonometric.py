"""Gradients of trigonometric and hyperbolic functions, in the order of
`meta/op/trigonometric.py`.
"""

import math

from meta import op
from meta.grad.core import gradient, onto


@gradient(op.sin)
def sin(x, dy):
    """dx = dy * cos(x)"""
    return op.multiply(dy, op.cos(x))


@gradient(op.cos)
def cos(x, dy):
    """dx = -dy * sin(x)"""
    return op.negative(op.multiply(dy, op.sin(x)))


@gradient(op.tan)
def tan(y, dy):
    """dx = dy * (1 + y**2)"""
    return op.multiply(dy, op.add(op.multiply(y, y), 1.0))


@gradient(op.asin)
def asin(x, dy):
    """dx = dy / sqrt(1 - x**2)"""
    return op.multiply(dy, op.rsqrt(op.subtract(1.0, op.multiply(x, x))))


@gradient(op.acos)
def acos(x, dy):
    """dx = -dy / sqrt(1 - x**2)"""
    return op.negative(op.multiply(dy, op.rsqrt(op.subtract(1.0, op.multiply(x, x)))))


@gradient(op.atan)
def atan(x, dy):
    """dx = dy / (1 + x**2)"""
    return op.divide(dy, op.add(op.multiply(x, x), 1.0))


@gradient(op.sinh)
def sinh(x, dy):
    """dx = dy * cosh(x)"""
    return op.multiply(dy, op.cosh(x))


@gradient(op.cosh)
def cosh(x, dy):
    """dx = dy * sinh(x)"""
    return op.multiply(dy, op.sinh(x))


@gradient(op.asinh)
def asinh(x, dy):
    """dx = dy / sqrt(x**2 + 1)"""
    return op.multiply(dy, op.rsqrt(op.add(op.multiply(x, x), 1.0)))


@gradient(op.acosh)
def acosh(x, dy):
    """dx = dy / sqrt(x**2 - 1)"""
    return op.multiply(dy, op.rsqrt(op.subtract(op.multiply(x, x), 1.0)))


@gradient(op.atanh)
def atanh(x, dy):
    """dx = dy / (1 - x**2)"""
    return op.divide(dy, op.subtract(1.0, op.multiply(x, x)))


@gradient(op.atan2)
def atan2(x1, x2, dy):
    """dx1 = dy * x2 / r, dx2 = -dy * x1 / r with r = x1**2 + x2**2; 0 at the origin, as torch."""
    square = op.add(op.multiply(x1, x1), op.multiply(x2, x2))
    scaled = op.where(op.equal(square, 0), 0, op.divide(dy, square))

    dx1 = onto(x1, lambda: op.multiply(scaled, x2))
    return dx1, onto(x2, lambda: op.negative(op.multiply(scaled, x1)))


@gradient(op.deg2rad)
def deg2rad(dy):
    """dx = dy * pi / 180"""
    return op.multiply(dy, math.pi / 180)


@gradient(op.rad2deg)
def rad2deg(dy):
    """dx = dy * 180 / pi"""
    return op.multiply(dy, 180 / math.pi)
