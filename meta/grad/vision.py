"""Gradients of detection and matching of images."""

from meta import op
from meta.grad.core import gradients, not_differentiable

not_differentiable(
    op.get_valid_counts,
    op.non_max_suppression,
    why="which boxes remain changes in steps",
    missing=True,
)
gradients({op.correlation: lambda x1, x2, dy, *options: op.correlation_dx(x1, x2, dy, *options)})
not_differentiable(
    op.correlation_dx, why="the gradient of a gradient is not implemented", missing=True
)
