"""Gradients of comparisons, logical operators, bits and classes of floats."""

from meta import op
from meta.grad.core import gradient, not_differentiable, onto
from meta.ir.types import TensorType

not_differentiable(
    op.bitwise_and, op.bitwise_or, op.bitwise_xor, op.bitwise_invert,
    op.bitwise_left_shift, op.bitwise_right_shift,
    why="integers have no gradient",
)  # fmt: skip
not_differentiable(op.reinterpret, why="bits have no gradient")
not_differentiable(
    op.isnan, op.isinf, op.isfinite, op.isposinf, op.isneginf, op.signbit,
    op.less, op.less_equal, op.greater, op.greater_equal, op.equal, op.not_equal, op.isclose,
    op.logical_and, op.logical_or, op.logical_xor, op.logical_not,
    why="the result is bool",
)  # fmt: skip


@gradient(op.where)
def where(condition, x: TensorType, y: TensorType, dy):
    """dy goes to the branch that was taken; the other one gets exactly 0."""
    return (
        None,
        onto(x, lambda: op.where(condition, dy, 0)),
        onto(y, lambda: op.where(condition, 0, dy)),
    )
