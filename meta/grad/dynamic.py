"""Gradients of operators whose result's shape depends on data."""

from typing import Any

from meta import op
from meta.grad.core import gradient, not_differentiable
from meta.grad.sorting import topk

not_differentiable(op.argwhere, op.upper_bound_argwhere, op.nonzero, why="the results are indices")
not_differentiable(op.unique, why="which elements are equal changes in steps", missing=True)
not_differentiable(
    op.sparse_fill_empty_rows,
    why="where an element goes depends on which rows are empty",
    missing=True,
)


_WHY = "no operator adds up what widths or sizes of the run time have spread"


@gradient(op.dynamic_reshape, op.dynamic_squeeze, op.dynamic_expand_dims)
def in_shape_of_x(x: Any, dy: Any) -> Any:
    """Of x only the type counts."""
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


@gradient(op.dynamic_strided_slice)
def dynamic_strided_slice(
    x: Any, begin: Any, end: Any, strides: Any, slice_mode: str, dy: Any
) -> Any:
    """dx = dy where x was read, 0 elsewhere."""
    dx = op.dynamic_strided_slice_dx(x, dy, begin, end, strides, slice_mode)
    return dx, None, None, None


@gradient(op.dynamic_strided_slice_dx)
def dynamic_strided_slice_dx(begin: Any, end: Any, strides: Any, slice_mode: str, dy_: Any) -> Any:
    """Linear in dy, and independent of the values of x."""
    through = op.dynamic_strided_slice(dy_, begin, end, strides, slice_mode)
    return op.zeros_like(dy_), through, None, None, None


@gradient(op.dynamic_topk)
def dynamic_topk(x: Any, k: Any, axis: int, largest: bool, ret_type: str, y: Any, dy: Any) -> Any:
    return topk(x, k, axis, largest, ret_type, y, dy), None


not_differentiable(op.dynamic_one_hot, why="indices have none, and the values are constants")


@gradient(op.dynamic_tile)
def dynamic_tile(x: Any, reps: Any, dy: Any) -> Any:
    """dx = the sum of dy over the repetitions, each of which becomes an axis beside that of x."""
    counts, extents = op.astype(reps, "int64"), op.shape_as_tensor(x)
    missing = extents.shape[0] - counts.shape[0]
    ones = op.ones_like(counts if missing < 0 else extents)
    ones = op.strided_slice(ones, (0,), (abs(missing),))
    if missing > 0:
        counts = op.concat((ones, counts), 0)
    elif missing < 0:
        extents = op.concat((ones, extents), 0)
    both = op.reshape(op.stack((counts, extents), 1), (-1,))
    apart = op.dynamic_reshape(dy, both)
    total = op.sum(apart, tuple(range(0, apart.ndim, 2))) if apart.ndim else apart
    return op.reshape_like(total, x), None


not_differentiable(op.dynamic_pad, op.dynamic_resize2d, why=_WHY, missing=True)
