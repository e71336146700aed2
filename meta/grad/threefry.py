"""Gradients of the operators of the splittable generator: there are none."""

from meta import op
from meta.grad.core import not_differentiable

not_differentiable(op.threefry_generate, op.threefry_split, why="states and numbers are integers")
not_differentiable(op.bits_to_uniform, why="bits are integers")
