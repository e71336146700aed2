"""Gradients of the operators with extents of the run time, in their order."""

from typing import Any

from meta import op
from meta.grad.core import gradient, not_differentiable

_WHY = "there is no operator yet that writes back to places that only the run time knows"


@gradient(op.dynamic_reshape)
def dynamic_reshape(x: Any, dy: Any) -> Any:
    """dx = dy in the shape of x, of which only the type counts."""
    return op.reshape_like(dy, x), None


@gradient(op.dynamic_broadcast_to)
def dynamic_broadcast_to(x: Any, dy: Any) -> Any:
    """dx = dy summed over the axes along which x was repeated."""
    return op.collapse_sum_like(dy, x), None


@gradient(op.dynamic_full)
def dynamic_full(fill_value: Any, dy: Any) -> Any:
    """The sum of dy, as every element is the value."""
    return op.cast_like(op.reshape_like(op.sum(dy), fill_value), fill_value), None


not_differentiable(op.dynamic_arange, why="the number of elements changes in steps")
not_differentiable(op.dynamic_strided_slice, op.dynamic_topk, why=_WHY)
not_differentiable(op.dynamic_one_hot, op.dynamic_tile, op.dynamic_pad, why=_WHY)
not_differentiable(op.dynamic_resize2d, why=_WHY)


@gradient(op.dynamic_squeeze)
def dynamic_squeeze(x: Any, dy: Any) -> Any:
    """dx = dy in the shape of x, of which only the type counts."""
    return op.reshape_like(dy, x), None


@gradient(op.dynamic_expand_dims)
def dynamic_expand_dims(x: Any, dy: Any) -> Any:
    """dx = dy in the shape of x, of which only the type counts."""
    return op.reshape_like(dy, x), None
