"""Gradients of arithmetic.

Each operand's gradient is summed over the dimensions along which it was broadcast (`collapse`,
`onto`). A Python number and an integer tensor have none, and nothing is computed for them.
"""

import math

from meta import op
from meta.base.dtype import COMPLEX, has_gradient
from meta.grad.core import (
    conjugated,
    gradient,
    gradients,
    holomorphic,
    not_differentiable,
    onto,
)
from meta.ir.types import TensorType
from meta.op.core.check import normalize_axes


def _split(dy, otherwise, where):
    """Split dy between the computed value and ``otherwise``, taken where ``where`` is false."""
    if otherwise is None:
        return dy, None
    return op.where(where, dy, 0), onto(otherwise, lambda: op.where(where, 0, dy))


@gradient(op.add)
def add(x1: TensorType, x2: TensorType, otherwise: TensorType, where, dy):
    dy, d_otherwise = _split(dy, otherwise, where)
    return onto(x1, lambda: dy), onto(x2, lambda: dy), d_otherwise, None


@gradient(op.subtract)
def subtract(x1: TensorType, x2: TensorType, otherwise: TensorType, where, dy):
    dy, d_otherwise = _split(dy, otherwise, where)
    return onto(x1, lambda: dy), onto(x2, lambda: -dy), d_otherwise, None


@gradient(op.multiply)
def multiply(x1, x2, dy):
    return onto(x1, lambda: dy * conjugated(x2)), onto(x2, lambda: dy * conjugated(x1))


@gradient(op.divide)
def divide(x1: TensorType, x2, y, dy):
    if isinstance(x2, bool | int | float) or has_gradient(x2.dtype):
        dx1 = dy / conjugated(x2)
        return onto(x1, lambda: dx1), onto(x2, lambda: -(dx1 * conjugated(y)))
    return None, None  # a quotient of integers


@gradient(op.pow)
@holomorphic
def pow(x1, x2, y, dy):
    """dx1 = dy * x2 * x1**(x2 - 1), 0 for x2 = 0; dx2 = dy * y * log(x1), 0 for x1 = 0 <= x2."""

    def base():
        if isinstance(x2, bool | int | float):
            if x2 == 0:
                return op.zeros_like(dy)
            return dy * (x1 ** (x2 - 1) * x2)
        slope = x1 ** (x2 - 1) * x2
        return op.where(op.equal(x2, 0), 0, dy * slope)

    def exponent():
        flat = op.equal(x1, 0)
        if y.dtype not in COMPLEX:  # which have no order
            flat = op.logical_and(flat, x2 >= 0)
        return op.where(flat, 0, dy * (y * op.log(x1)))

    return onto(x1, base), onto(x2, exponent)


def _extremum(loses, x1, x2, dy):
    """Give dy to the operand that was taken; both get half of it where they are equal, as torch."""

    def of(a, b):
        shared = op.where(op.equal(a, b), dy * 0.5, dy)
        return op.where(loses(a, b), 0, shared)

    return onto(x1, lambda: of(x1, x2)), onto(x2, lambda: of(x2, x1))


@gradient(op.remainder)
def remainder(x1, x2, dy):
    """dx1 = dy, dx2 = -dy * floor(x1 / x2), the jumps left out."""
    return onto(x1, lambda: dy), onto(x2, lambda: -(dy * op.floor_divide(x1, x2)))


@gradient(op.fmod)
def fmod(x1, x2, dy):
    """dx1 = dy, dx2 = -dy * trunc(x1 / x2), the jumps left out."""
    return onto(x1, lambda: dy), onto(x2, lambda: -(dy * op.trunc(x1 / x2)))


@gradient(op.copysign)
def copysign(x1, x2, y, dy):
    """dx1 = dy, or -dy where the sign changed; 0 at 0. dx2 = 0."""
    dx1 = onto(x1, lambda: dy * (op.sign(x1) * op.sign(y)))
    return dx1, onto(x2, lambda: op.zeros_like(dy))


@gradient(op.hypot)
def hypot(x1, x2, y, dy):
    scaled = dy / y
    return onto(x1, lambda: scaled * x1), onto(x2, lambda: scaled * x2)


def _operand_selected(wins, x1, x2, dy):
    """Give dy to the operand that was taken, to x1 where they are equal, as torch."""
    first = op.logical_or(wins(x1, x2), op.not_equal(x2, x2))
    return onto(x1, lambda: op.where(first, dy, 0)), onto(x2, lambda: op.where(first, 0, dy))


def _sigmoid_shares(scale, x1, x2, dy):
    """dx1 = dy * s, dx2 = dy * (1 - s) with s = sigmoid(scale * (x1 - x2))."""
    distance = (x1 - x2) * scale
    return (
        onto(x1, lambda: dy * op.sigmoid(distance)),
        onto(x2, lambda: dy * op.sigmoid(-distance)),
    )


gradients(
    {
        op.maximum: lambda x1, x2, dy: _extremum(op.less, x1, x2, dy),
        op.minimum: lambda x1, x2, dy: _extremum(op.greater, x1, x2, dy),
        op.fmax: lambda x1, x2, dy: _operand_selected(op.greater_equal, x1, x2, dy),
        op.fmin: lambda x1, x2, dy: _operand_selected(op.less_equal, x1, x2, dy),
        op.logaddexp: lambda x1, x2, dy: _sigmoid_shares(1.0, x1, x2, dy),
        op.logaddexp2: lambda x1, x2, dy: _sigmoid_shares(math.log(2), x1, x2, dy),
        op.bias_add: lambda dy, axis: (dy, op.sum(dy, normalize_axes(axis, dy.ndim, exclude=True))),
        op.negative: lambda dy: -dy,
    }
)
not_differentiable(op.floor_divide, why="piecewise constant")
not_differentiable(op.heaviside, why="a step, for whose value at 0 torch has no gradient either")
not_differentiable(op.fixed_point_multiply, why="integers have no gradient")
not_differentiable(op.fixed_point_number, why="the results are integers")


@gradient(op.ldexp)
def ldexp(x1, x2, y, dy):
    return onto(x1, lambda: op.ldexp(dy, x2)), onto(x2, lambda: dy * y * math.log(2))


@gradient(op.nextafter)
def nextafter(x1, x2, dy):
    """dx1 = dy, 0 where the two are equal, as torch; dx2 = 0."""
    dx1 = onto(x1, lambda: op.where(op.not_equal(x1, x2), dy, 0))
    return dx1, onto(x2, lambda: op.zeros_like(dy))


@gradient(op.addcmul)
def addcmul(x: TensorType, tensor1, tensor2, value, dy):
    scaled = dy * value
    return (
        onto(x, lambda: dy),
        onto(tensor1, lambda: scaled * tensor2),
        onto(tensor2, lambda: scaled * tensor1),
    )


@gradient(op.addcdiv)
def addcdiv(x: TensorType, tensor1, tensor2, value, dy):
    scaled = dy * value / tensor2
    quotient = tensor1 / tensor2
    return (
        onto(x, lambda: dy),
        onto(tensor1, lambda: scaled),
        onto(tensor2, lambda: -(scaled * quotient)),
    )


@gradient(op.lerp)
def lerp(x, end, weight, dy):
    return (
        onto(x, lambda: dy * (1.0 - weight)),
        onto(end, lambda: dy * weight),
        onto(weight, lambda: dy * (end - x)),
    )


@gradient(op.abs)
def abs(x, dy):
    """dx = dy * sign(x), of complex numbers dy * x / |x|; at the kink 0, as torch."""
    if x.dtype in COMPLEX:
        size = op.abs(x)
        return x * op.astype(op.where(size == 0, 0, dy / size), x.dtype)
    return op.where(x > 0, dy, op.where(x < 0, -dy, 0))
