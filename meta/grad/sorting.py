"""Gradients of the operators that order elements, in their order."""

from typing import Any

from meta import op
from meta.grad.core import gradient, not_differentiable

not_differentiable(op.argsort, why="the result is an index")


@gradient(op.sort)
def sort(data: Any, axis: int, is_ascend: bool, dy: Any) -> Any:
    """dx = dy, put back to where each element was."""
    return op.gather_dx(data, axis, op.argsort(data, axis, is_ascend, "int32"), dy)


@gradient(op.topk)
def topk(data: Any, k: Any, axis: int, ret_type: str, is_ascend: bool, y: Any, dy: Any) -> Any:
    """dx = dy, put to where each element was; 0 elsewhere."""
    if ret_type == "indices":
        return op.zeros_like(data)
    if ret_type == "both":
        return op.gather_dx(data, axis, y[1], dy[0])
    find = op.topk if isinstance(k, int) else op.dynamic_topk
    return op.gather_dx(data, axis, find(data, k, axis, "indices", is_ascend), dy)


not_differentiable(op.searchsorted, why="the result is an index")
