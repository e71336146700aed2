"""Gradients of detection and matching of images."""

from meta import op
from meta.grad.core import gradient, not_differentiable

not_differentiable(
    op.get_valid_counts, op.non_max_suppression, why="which boxes remain changes in steps"
)


@gradient(op.correlation)
def correlation(x1, x2, kernel_size, max_displacement, stride1, stride2, padding, is_multiply, dy):
    options = (kernel_size, max_displacement, stride1, stride2, padding, is_multiply)
    return op.correlation_dx(x1, x2, dy, *options)


not_differentiable(op.correlation_dx, why="the gradient of a gradient is not implemented")
