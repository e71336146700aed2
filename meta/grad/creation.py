"""Gradients of operators that create tensors."""

from meta import op
from meta.grad.core import collapse, gradient, not_differentiable
from meta.ir.types import TensorType

not_differentiable(op.zeros, op.ones, op.full, op.arange, why="it takes no tensor")


@gradient(op.one_hot)
def one_hot(dy, indices, on_value: TensorType, off_value: TensorType, depth, axis, mode):
    """Each value gathers the gradient of the places that it fills; the indices have none."""
    on = op.one_hot(indices, depth, 1, 0, axis, dy.dtype, mode=mode)
    off = op.one_hot(indices, depth, 0, 1, axis, dy.dtype, mode=mode)
    return (None, collapse(dy * on, on_value), collapse(dy * off, off_value))


not_differentiable(
    op.zeros_like,
    op.ones_like,
    op.full_like,
    why="the result does not depend on the values of the tensor, only on its type",
)
