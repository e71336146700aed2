"""Extents do not depend on a tensor's values."""

from meta import op
from meta.grad.core import not_differentiable

not_differentiable(
    op.shape,
    op.size,
    op.numel,
    op.ndarray_size,
    op.shape_as_tensor,
    op.get_reduce_axis,
    op.get_kept_dims,
    why="the result depends on the shape only, not on the values",
)
