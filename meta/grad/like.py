"""Gradients of the operators that follow another tensor's type, in their order.

The values of what is followed do not count, so its gradient is 0.
"""

from typing import Any

from meta import op
from meta.base.dtype import is_float
from meta.grad.core import collapse, gradient
from meta.ir.types import TensorType


def _zero(dy: Any, like_type: TensorType) -> Any:
    """Return zeros of a type from a gradient that has its shape."""
    if not is_float(like_type.dtype):
        return None
    zeros = op.zeros_like(dy)
    return zeros if zeros.dtype == like_type.dtype else op.cast(zeros, like_type.dtype)


@gradient(op.reshape_like)
def reshape_like(x: TensorType, like_type: TensorType, dy: Any) -> Any:
    """dx = dy in the shape of x."""
    return op.reshape(dy, x.known_shape), _zero(dy, like_type)


@gradient(op.broadcast_to_like)
def broadcast_to_like(x: TensorType, like_type: TensorType, dy: Any) -> Any:
    """dx = dy summed over the repetitions."""
    return collapse(dy, x), _zero(dy, like_type)


@gradient(op.collapse_sum_like)
def collapse_sum_like(x: TensorType, like_type: TensorType, dy: Any) -> Any:
    """dx = dy, repeated."""
    return op.broadcast_to(dy, x.known_shape), _zero(dy, like_type)


@gradient(op.cast_like)
def cast_like(x: TensorType, like_type: Any, dy: Any) -> Any:
    """dx = dy in the dtype of x; integers and bool have no gradient."""
    dx = op.cast(dy, x.dtype) if is_float(x.dtype) else None
    return dx, op.zeros_like(like_type) if is_float(like_type.dtype) else None


@gradient(op.group_cast)
def group_cast(tensor_list: TensorType, dy: Any) -> Any:
    """Each gradient in the dtype of its tensor; integers and bool have none."""
    dys = dy if isinstance(dy, tuple) else (dy,)
    return tuple(
        op.cast(d, t.dtype) if is_float(t.dtype) else None
        for t, d in zip(tensor_list, dys, strict=True)
    )
