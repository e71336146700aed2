"""Gradients of comparisons, logical operators, bits and classes of floats."""

from meta import op
from meta.grad.core import gradient, not_differentiable, onto
from meta.ir.types import TensorType

not_differentiable(op.bitwise_and, op.bitwise_or, op.bitwise_xor, why="integers have no gradient")


not_differentiable(op.bitwise_not, why="integers have no gradient")


not_differentiable(op.left_shift, op.right_shift, why="integers have no gradient")


not_differentiable(op.reinterpret, why="bits have no gradient")


not_differentiable(op.isnan, op.isinf, op.isfinite, why="the result is bool")


not_differentiable(op.isposinf, op.isneginf, op.signbit, why="the result is bool")


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


not_differentiable(op.isclose, why="the result is bool")


not_differentiable(op.logical_not, why="the result is bool")
