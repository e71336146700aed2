"""Gradients of the bitwise operators: none."""

from meta import op
from meta.grad.core import not_differentiable

not_differentiable(op.bitwise_and, op.bitwise_or, op.bitwise_xor, why="integers have no gradient")
not_differentiable(op.bitwise_not, why="integers have no gradient")
not_differentiable(op.left_shift, op.right_shift, why="integers have no gradient")
