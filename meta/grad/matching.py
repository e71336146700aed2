"""Gradients of comparing neighbourhoods."""

from meta import op
from meta.grad.core import gradient, not_differentiable


@gradient(op.correlation)
def correlation(x1, x2, kernel_size, max_displacement, stride1, stride2, padding, is_multiply, dy):
    options = (kernel_size, max_displacement, stride1, stride2, padding, is_multiply)
    return op.correlation_dx(x1, x2, dy, *options)


not_differentiable(op.correlation_dx, why="the gradient of a gradient is not implemented")
