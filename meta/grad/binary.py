"""Gradients of the elementwise operators of two operands, in the order of `meta/op/binary.py`.

Each operand's gradient is summed over the axes along which it was broadcast (`collapse`). A Python
number and an integer tensor have none, and nothing is computed for them.
"""

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
    return onto(x1, lambda: dy), onto(x2, lambda: op.negative(dy)), d_otherwise, None


@gradient(op.multiply)
def multiply(x1, x2, dy):
    """dx1 = dy * x2, dx2 = dy * x1"""
    return onto(x1, lambda: op.multiply(dy, x2)), onto(x2, lambda: op.multiply(dy, x1))


@gradient(op.divide)
def divide(x1: TensorType, x2, y, dy):
    """dx1 = dy / x2, dx2 = -dy * y / x2"""
    if isinstance(x2, bool | int | float) or is_float(x2.dtype):
        dx1 = op.divide(dy, x2)
        return onto(x1, lambda: dx1), onto(x2, lambda: op.negative(op.multiply(dx1, y)))
    return None, None  # a quotient of integers


@gradient(op.power)
def power(x1, x2, y, dy):
    """dx1 = dy * x2 * x1**(x2 - 1), 0 for x2 = 0; dx2 = dy * y * log(x1), 0 for x1 = 0 <= x2."""

    def base():
        if isinstance(x2, bool | int | float):
            if x2 == 0:
                return op.zeros_like(dy)
            return op.multiply(dy, op.multiply(op.power(x1, op.subtract(x2, 1)), x2))
        slope = op.multiply(op.power(x1, op.subtract(x2, 1)), x2)
        return op.where(op.equal(x2, 0), 0, op.multiply(dy, slope))

    def exponent():
        flat = op.logical_and(op.equal(x1, 0), op.greater_equal(x2, 0))
        return op.where(flat, 0, op.multiply(dy, op.multiply(y, op.log(x1))))

    return onto(x1, base), onto(x2, exponent)


def _extremum(loses, x1, x2, dy):
    """Give dy to the operand that was taken; both get half of it where they are equal."""

    def of(a, b):
        shared = op.where(op.equal(a, b), op.multiply(dy, 0.5), dy)
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
    return onto(x1, lambda: dy), onto(
        x2, lambda: op.negative(op.multiply(dy, op.floor_divide(x1, x2)))
    )


not_differentiable(op.less, op.less_equal, op.greater, op.greater_equal, why="the result is bool")
not_differentiable(op.equal, op.not_equal, why="the result is bool")
not_differentiable(op.logical_and, op.logical_or, op.logical_xor, why="the result is bool")


@gradient(op.where)
def where(condition, x: TensorType, y: TensorType, dy):
    """dy goes to the branch that was taken; the other one gets exactly 0."""
    return (
        None,
        onto(x, lambda: op.where(condition, dy, 0)),
        onto(y, lambda: op.where(condition, 0, dy)),
    )
