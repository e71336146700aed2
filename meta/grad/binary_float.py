"""Gradients of more operators of two operands, in the order of `meta/op/binary_float.py`.

Each operand's gradient is summed over the axes along which it was broadcast (`onto`).
"""

import math

from meta import op
from meta.grad.core import gradient, not_differentiable, onto


@gradient(op.fmod)
def fmod(x1, x2, dy):
    """dx1 = dy, dx2 = -dy * trunc(x1 / x2), the jumps left out."""

    def divisor():
        return op.negative(op.multiply(dy, op.trunc(op.divide(x1, x2))))

    return onto(x1, lambda: dy), onto(x2, divisor)


@gradient(op.copysign)
def copysign(x1, x2, y, dy):
    """dx1 = dy, or -dy where the sign changed; 0 at 0. dx2 = 0."""

    def magnitude():
        return op.multiply(dy, op.multiply(op.sign(x1), op.sign(y)))

    return onto(x1, magnitude), onto(x2, lambda: op.zeros_like(dy))


@gradient(op.hypot)
def hypot(x1, x2, y, dy):
    """dx1 = dy * x1 / y, dx2 = dy * x2 / y"""
    scaled = op.divide(dy, y)
    return onto(x1, lambda: op.multiply(scaled, x1)), onto(x2, lambda: op.multiply(scaled, x2))


def _taken(first, dy, x1, x2):
    """dy goes to x1 where ``first`` is true, else to x2."""
    return onto(x1, lambda: op.where(first, dy, 0)), onto(x2, lambda: op.where(first, 0, dy))


@gradient(op.fmax)
def fmax(x1, x2, dy):
    """dy goes to the operand that was taken, to x1 where they are equal, as torch."""
    return _taken(op.logical_or(op.greater_equal(x1, x2), op.not_equal(x2, x2)), dy, x1, x2)


@gradient(op.fmin)
def fmin(x1, x2, dy):
    """dy goes to the operand that was taken, to x1 where they are equal, as torch."""
    return _taken(op.logical_or(op.less_equal(x1, x2), op.not_equal(x2, x2)), dy, x1, x2)


def _shares(scale, x1, x2, dy):
    """dx1 = dy * s, dx2 = dy * (1 - s) with s = sigmoid(scale * (x1 - x2))."""
    distance = op.multiply(op.subtract(x1, x2), scale)
    return (
        onto(x1, lambda: op.multiply(dy, op.sigmoid(distance))),
        onto(x2, lambda: op.multiply(dy, op.sigmoid(op.negative(distance)))),
    )


@gradient(op.logaddexp)
def logaddexp(x1, x2, dy):
    """dx1 = dy / (1 + exp(x2 - x1)), dx2 = dy / (1 + exp(x1 - x2))"""
    return _shares(1.0, x1, x2, dy)


@gradient(op.logaddexp2)
def logaddexp2(x1, x2, dy):
    """dx1 = dy / (1 + 2**(x2 - x1)), dx2 = dy / (1 + 2**(x1 - x2))"""
    return _shares(math.log(2), x1, x2, dy)


not_differentiable(op.heaviside, why="a step, for whose value at 0 torch has no gradient either")


@gradient(op.ldexp)
def ldexp(x1, x2, y, dy):
    """dx1 = dy * 2**x2, dx2 = dy * y * log(2)"""

    def exponent():
        return op.multiply(op.multiply(dy, y), math.log(2))

    return onto(x1, lambda: op.ldexp(dy, x2)), onto(x2, exponent)


not_differentiable(op.isclose, why="the result is bool")


@gradient(op.nextafter)
def nextafter(x1, x2, dy):
    """dx1 = dy, 0 where the two are equal, as torch; dx2 = 0."""

    def moved():
        return op.where(op.not_equal(x1, x2), dy, 0)

    return onto(x1, moved), onto(x2, lambda: op.zeros_like(dy))
