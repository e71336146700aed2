"""Gradients of the operators on boxes, in their order."""

from meta import op
from meta.grad.core import not_differentiable

not_differentiable(
    op.get_valid_counts, op.non_max_suppression, why="which boxes remain changes in steps"
)
