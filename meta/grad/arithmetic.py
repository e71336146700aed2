"""Gradients of arithmetic.

Each operand's gradient is summed over the dimensions along which it was broadcast (`collapse`,
`onto`). A Python number and an integer tensor have none, and nothing is computed for them.
"""

import math

from meta import op
from meta.base.dtype import is_float
from meta.grad.core import gradient, not_differentiable, onto
from meta.ir.types import TensorType


def _split(dy, otherwise, where):
    """Split dy between the computed value and ``otherwise``, taken where ``where`` is false."""
    if otherwise is None:
        return dy, None
    if where is None:
        return dy, onto(otherwise, lambda: op.zeros_like(dy))
    return op.where(where, dy, 0), onto(otherwise, lambda: op.where(where, 0, dy))


@gradient(op.add)
def add(x1: TensorType, x2: TensorType, otherwise: TensorType, where, dy):
    """dx1 = dx2 = dy, where ``where`` is true; elsewhere it is the gradient of ``otherwise``."""
    dy, d_otherwise = _split(dy, otherwise, where)
    return onto(x1, lambda: dy), onto(x2, lambda: dy), d_otherwise, None


@gradient(op.subtract)
def subtract(x1: TensorType, x2: TensorType, otherwise: TensorType, where, dy):
    """dx1 = dy, dx2 = -dy, where ``where`` is true; elsewhere dy is ``otherwise``'s."""
    dy, d_otherwise = _split(dy, otherwise, where)
    return onto(x1, lambda: dy), onto(x2, lambda: -dy), d_otherwise, None


@gradient(op.multiply)
def multiply(x1, x2, dy):
    """dx1 = dy * x2, dx2 = dy * x1"""
    return onto(x1, lambda: dy * x2), onto(x2, lambda: dy * x1)


@gradient(op.divide)
def divide(x1: TensorType, x2, y, dy):
    """dx1 = dy / x2, dx2 = -dy * y / x2"""
    if isinstance(x2, bool | int | float) or is_float(x2.dtype):
        dx1 = dy / x2
        return onto(x1, lambda: dx1), onto(x2, lambda: -(dx1 * y))
    return None, None  # a quotient of integers


@gradient(op.power)
def power(x1, x2, y, dy):
    """dx1 = dy * x2 * x1**(x2 - 1), 0 for x2 = 0; dx2 = dy * y * log(x1), 0 for x1 = 0 <= x2."""

    def base():
        if isinstance(x2, bool | int | float):
            if x2 == 0:
                return op.zeros_like(dy)
            return dy * (x1 ** (x2 - 1) * x2)
        slope = x1 ** (x2 - 1) * x2
        return op.where(op.equal(x2, 0), 0, dy * slope)

    def exponent():
        flat = op.logical_and(op.equal(x1, 0), x2 >= 0)
        return op.where(flat, 0, dy * (y * op.log(x1)))

    return onto(x1, base), onto(x2, exponent)


def _extremum(loses, x1, x2, dy):
    """Give dy to the operand that was taken; both get half of it where they are equal."""

    def of(a, b):
        shared = op.where(op.equal(a, b), dy * 0.5, dy)
        return op.where(loses(a, b), 0, shared)

    return onto(x1, lambda: of(x1, x2)), onto(x2, lambda: of(x2, x1))


@gradient(op.maximum)
def maximum(x1, x2, dy):
    """dy goes to the larger operand; half of it to each where they are equal, as torch."""
    return _extremum(op.less, x1, x2, dy)


@gradient(op.minimum)
def minimum(x1, x2, dy):
    """dy goes to the smaller operand; half of it to each where they are equal, as torch."""
    return _extremum(op.greater, x1, x2, dy)


not_differentiable(op.floor_divide, why="piecewise constant")


@gradient(op.mod)
def mod(x1, x2, dy):
    """dx1 = dy, dx2 = -dy * floor(x1 / x2), the jumps left out."""
    return onto(x1, lambda: dy), onto(x2, lambda: -(dy * op.floor_divide(x1, x2)))


@gradient(op.fmod)
def fmod(x1, x2, dy):
    """dx1 = dy, dx2 = -dy * trunc(x1 / x2), the jumps left out."""

    def divisor():
        return -(dy * op.trunc(x1 / x2))

    return onto(x1, lambda: dy), onto(x2, divisor)


@gradient(op.copysign)
def copysign(x1, x2, y, dy):
    """dx1 = dy, or -dy where the sign changed; 0 at 0. dx2 = 0."""

    def magnitude():
        return dy * (op.sign(x1) * op.sign(y))

    return onto(x1, magnitude), onto(x2, lambda: op.zeros_like(dy))


@gradient(op.hypot)
def hypot(x1, x2, y, dy):
    """dx1 = dy * x1 / y, dx2 = dy * x2 / y"""
    scaled = dy / y
    return onto(x1, lambda: scaled * x1), onto(x2, lambda: scaled * x2)


def _taken(first, dy, x1, x2):
    """dy goes to x1 where ``first`` is true, else to x2."""
    return onto(x1, lambda: op.where(first, dy, 0)), onto(x2, lambda: op.where(first, 0, dy))


@gradient(op.fmax)
def fmax(x1, x2, dy):
    """dy goes to the operand that was taken, to x1 where they are equal, as torch."""
    return _taken(op.logical_or(x1 >= x2, op.not_equal(x2, x2)), dy, x1, x2)


@gradient(op.fmin)
def fmin(x1, x2, dy):
    """dy goes to the operand that was taken, to x1 where they are equal, as torch."""
    return _taken(op.logical_or(x1 <= x2, op.not_equal(x2, x2)), dy, x1, x2)


def _shares(scale, x1, x2, dy):
    """dx1 = dy * s, dx2 = dy * (1 - s) with s = sigmoid(scale * (x1 - x2))."""
    distance = (x1 - x2) * scale
    return (
        onto(x1, lambda: dy * op.sigmoid(distance)),
        onto(x2, lambda: dy * op.sigmoid(-distance)),
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
        return dy * y * math.log(2)

    return onto(x1, lambda: op.ldexp(dy, x2)), onto(x2, exponent)


@gradient(op.nextafter)
def nextafter(x1, x2, dy):
    """dx1 = dy, 0 where the two are equal, as torch; dx2 = 0."""

    def moved():
        return op.where(op.not_equal(x1, x2), dy, 0)

    return onto(x1, moved), onto(x2, lambda: op.zeros_like(dy))


@gradient(op.addcmul)
def addcmul(x: TensorType, tensor1, tensor2, value, dy):
    """dx = dy, dtensor1 = dy * value * tensor2, dtensor2 = dy * value * tensor1"""
    scaled = dy * value
    return (
        onto(x, lambda: dy),
        onto(tensor1, lambda: scaled * tensor2),
        onto(tensor2, lambda: scaled * tensor1),
    )


@gradient(op.addcdiv)
def addcdiv(x: TensorType, tensor1, tensor2, value, dy):
    """dx = dy, dtensor1 = dy * value / tensor2, dtensor2 = -dy * value * tensor1 / tensor2**2"""
    scaled = dy * value / tensor2
    quotient = tensor1 / tensor2
    return (
        onto(x, lambda: dy),
        onto(tensor1, lambda: scaled),
        onto(tensor2, lambda: -(scaled * quotient)),
    )


@gradient(op.lerp)
def lerp(x, end, weight, dy):
    """dx = dy * (1 - weight), dend = dy * weight, dweight = dy * (end - x)"""
    grads = (
        onto(x, lambda: dy * (1.0 - weight)),
        onto(end, lambda: dy * weight),
    )
    return *grads, onto(weight, lambda: dy * (end - x))


not_differentiable(op.fixed_point_multiply, why="integers have no gradient")


not_differentiable(op.fixed_point_number, why="the results are integers")


@gradient(op.bias_add)
def bias_add(dy, axis):
    return dy, op.sum(dy, axis, 0, True)


@gradient(op.negative)
def negative(dy):
    """dx = -dy"""
    return -dy


@gradient(op.abs)
def abs(x, dy):
    """dx = dy * sign(x); at the kink 0, as torch."""
    return op.where(x > 0, dy, op.where(x < 0, -dy, 0))
