"""Gradients of the operators that make tensors out of numbers."""

from meta import op
from meta.grad.core import collapse, gradient, not_differentiable
from meta.ir.types import TensorType

not_differentiable(op.zeros, op.ones, op.full, op.arange, why="it takes no tensor")


@gradient(op.one_hot)
def one_hot(dy, indices, on_value: TensorType, off_value: TensorType, depth, axis):
    """Each value gathers the gradient of the places that it fills; the indices have none."""
    on = op.one_hot(indices, 1, 0, depth, axis, dy.dtype)
    off = op.one_hot(indices, 0, 1, depth, axis, dy.dtype)
    return (
        None,
        collapse(op.multiply(dy, on), on_value),
        collapse(op.multiply(dy, off), off_value),
    )


not_differentiable(
    op.zeros_like,
    op.ones_like,
    op.full_like,
    why="the result does not depend on the values of the tensor, only on its type",
)
