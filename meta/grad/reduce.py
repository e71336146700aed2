"""Gradients of reductions, in the order of the operators.

A gradient reaches the reduced elements by broadcasting, from its shape with all axes kept.
"""

from typing import Any

from meta import op
from meta.base.dtype import is_float
from meta.grad.core import gradient, not_differentiable
from meta.ir.types import TensorType
from meta.op.core.reduction import reduction


@gradient(op.sum)
def sum(x: TensorType, dy: Any, axis: Any, keepdims: Any, exclude: bool) -> Any:
    """dx = dy, repeated; unlike `sum_dx` this does not keep x alive."""
    if not is_float(x.dtype):
        return None
    kept = reduction(x.ndim, axis, keepdims, exclude).kept_shape(x.static_shape)
    return op.broadcast_to(op.reshape(dy, kept), x.static_shape)


@gradient(op.sum_dx)
def sum_dx(dy_: Any, axis: Any, keepdims: Any, exclude: bool) -> Any:
    """Linear in dy, and independent of the values of x."""
    return op.zeros_like(dy_), op.sum(dy_, axis, keepdims, exclude)


@gradient(op.mean)
def mean(x: TensorType, dy: Any, axis: Any, keepdims: bool, exclude: bool) -> Any:
    """dx = dy / n, repeated."""
    return op.mean_dx(dy, x.static_shape, axis, keepdims, exclude)


@gradient(op.mean_dx)
def mean_dx(dy_: Any, axis: Any, keepdims: bool, exclude: bool) -> Any:
    """Linear in dy."""
    return op.mean(dy_, axis, keepdims, exclude)


@gradient(op.max, op.min)
def extremum(x: Any, y: Any, dy: Any, axis: Any, exclude: bool) -> Any:
    """dx = dy / n at each of the n elements that equal the result, 0 elsewhere."""
    kept = reduction(x.ndim, axis, True, exclude)
    shape = kept.kept_shape(x.shape)
    chosen = op.cast(op.equal(x, op.reshape(y, shape)), dy.dtype)
    count = op.sum(chosen, axis, True, exclude)
    return op.multiply(chosen, op.divide(op.reshape(dy, shape), count))


not_differentiable(op.argmax, op.argmin, why="the result is an index")


@gradient(op.prod)
def prod(x: Any, dy: Any, axis: Any, keepdims: bool, exclude: bool) -> Any:
    """dx = dy times the product of the other elements."""
    return op.prod_dx(x, dy, axis, keepdims, exclude)


not_differentiable(
    op.prod_dx, why="the second derivative of a product needs the product of all but two elements"
)
not_differentiable(op.all, op.any, why="the result is a bool")
