"""Gradients of changes and queries of shapes.

Only the type of a ``like_type`` counts, so its gradient is 0.
"""

from typing import Any

from meta import op
from meta.base.dtype import is_float
from meta.grad.core import collapse, gradient, gradients, in_dtype, not_differentiable
from meta.ir import UNKNOWN
from meta.ir.types import TensorType


@gradient(op.reshape, op.batch_flatten, op.expand_dims, op.squeeze)
def view(x: TensorType, dy: Any) -> Any:
    """dx = dy in the shape of x."""
    return op.reshape(dy, x.known_shape)


gradients(
    {
        op.permute_dims: lambda dy, axes: op.permute_dims_dx(dy, axes),
        op.permute_dims_dx: lambda dy, axes: op.permute_dims(dy, axes),
        op.swapaxes: lambda dy, axis1, axis2: op.swapaxes(dy, axis1, axis2),
    }
)


@gradient(op.broadcast_to)
def broadcast_to(x: TensorType, dy: Any) -> Any:
    """dx = dy summed over the repetitions."""
    return collapse(dy, x)


def _zero(dy: Any, like_type: TensorType) -> Any:
    """Return zeros of a type from a gradient that has its shape."""
    if not is_float(like_type.dtype):
        return None
    return in_dtype(op.zeros_like(dy), like_type.dtype)


@gradient(op.reshape_like)
def reshape_like(x: TensorType, like_type: TensorType, dy: Any) -> Any:
    """dx = dy in the shape of x."""
    unknown = UNKNOWN in x.shape
    dx = op.reshape_like(dy, x) if unknown else op.reshape(dy, x.shape)
    return dx, _zero(dy, like_type)


@gradient(op.broadcast_to_like)
def broadcast_to_like(x: TensorType, like_type: TensorType, dy: Any) -> Any:
    """dx = dy summed over the repetitions."""
    return collapse(dy, x), _zero(dy, like_type)


@gradient(op.collapse_sum_like)
def collapse_sum_like(x: TensorType, like_type: TensorType, dy: Any) -> Any:
    """dx = dy, repeated."""
    unknown = UNKNOWN in x.shape
    dx = op.broadcast_to_like(dy, x) if unknown else op.broadcast_to(dy, x.shape)
    return dx, _zero(dy, like_type)


not_differentiable(
    op.shape,
    op.numel,
    op.shape_as_tensor,
    op.get_reduce_axis,
    op.get_kept_dims,
    why="the result depends on the shape only, not on the values",
)
