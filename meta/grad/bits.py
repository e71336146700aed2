"""Gradients of the operators on bits: none."""

from meta import op
from meta.grad.core import not_differentiable

not_differentiable(op.reinterpret, why="bits have no gradient")
