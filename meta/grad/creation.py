"""Gradients of operators that create tensors."""

from typing import Any

from meta import op
from meta.grad.core import collapse, gradient, not_differentiable
from meta.ir.types import TensorType

not_differentiable(op.zeros, op.ones, op.full, op.arange, why="it takes no tensor")


@gradient(op.one_hot)
def one_hot(dy, indices, on_value: TensorType, off_value: TensorType, depth, axis):
    """Each value gathers the gradient of the places that it fills; the indices have none."""
    on = op.one_hot(indices, depth, 1, 0, axis, dy.dtype)
    off = op.one_hot(indices, depth, 0, 1, axis, dy.dtype)
    return (None, collapse(dy * on, on_value), collapse(dy * off, off_value))


not_differentiable(
    op.zeros_like,
    op.ones_like,
    op.full_like,
    why="the result does not depend on the values of the tensor, only on its type",
)


@gradient(op.mesh_grid)
def mesh_grid(x: TensorType, dy: Any) -> Any:
    """Each vector gets its result's gradient, summed over the other axes."""
    dys = dy if isinstance(dy, tuple) else (dy,)
    return tuple(
        op.reshape(op.sum(d, i, False, True) if len(x) > 1 else d, t.known_shape)
        for i, (t, d) in enumerate(zip(x, dys, strict=True))
    )
