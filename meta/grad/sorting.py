"""Gradients of the operators that order elements, in their order."""

from typing import Any

from meta import op
from meta.grad.core import gradient, not_differentiable

not_differentiable(op.argsort, why="the result is an index")


@gradient(op.sort)
def sort(x: Any, axis: int, descending: bool, dy: Any) -> Any:
    """dx = dy, put back to where each element was."""
    return op.take_along_axis_dx(x, dy, op.argsort.plain(x, axis, descending, "int32"), axis)


@gradient(op.topk)
def topk(x: Any, k: Any, axis: int, largest: bool, ret_type: str, y: Any, dy: Any) -> Any:
    """dx = dy, put to where each element was; 0 elsewhere."""
    if ret_type == "indices":
        return op.zeros_like(x)
    if ret_type == "both":
        return op.take_along_axis_dx(x, dy[0], y[1], axis)
    find = op.topk.plain if isinstance(k, int) else op.dynamic_topk
    return op.take_along_axis_dx(x, dy, find(x, k, axis, largest, "indices"), axis)


not_differentiable(op.searchsorted, why="the result is an index")
