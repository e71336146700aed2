"""Gradients of products with fixed-point numbers: there are none."""

from meta import op
from meta.grad.core import not_differentiable

not_differentiable(op.fixed_point_multiply, why="integers have no gradient")
not_differentiable(op.fixed_point_number, why="the results are integers")
