"""Gradients of the operators that rearrange, select and repeat elements, in their order."""

from typing import Any

from meta import op
from meta.base.dtype import is_float
from meta.grad.core import collapse, gradient, not_differentiable
from meta.ir.types import TensorType
from meta.op.core.check import normalize_axis
from meta.op.transform import padding_row, split_points


@gradient(op.reshape, op.batch_flatten, op.expand_dims, op.squeeze)
def view(x: TensorType, dy: Any) -> Any:
    """dx = dy in the shape of x."""
    return op.reshape(dy, x.known_shape)


@gradient(op.transpose)
def transpose(dy: Any, axes: Any) -> Any:
    """dx = dy, permuted back."""
    return op.transpose_dx(dy, axes)


@gradient(op.transpose_dx)
def transpose_dx(dy: Any, axes: Any) -> Any:
    """The inverse permutation's inverse is the permutation."""
    return op.transpose(dy, axes)


@gradient(op.concatenate)
def concatenate(x: TensorType, dy: Any, axis: int) -> Any:
    """Every part of dy goes to the tensor it came from."""
    return op.split(dy, split_points(x, axis), axis)


not_differentiable(op.concatenate_dx, why="the result is a tuple of ints, known from the shapes")


@gradient(op.split)
def split(dy: Any, axis: int) -> Any:
    """dx = the gradients of the parts, joined."""
    return op.concatenate(dy if isinstance(dy, tuple) else (dy,), axis)


@gradient(op.stack)
def stack(x: TensorType, dy: Any, axis: int) -> Any:
    """Every slice of dy goes to the tensor it came from."""
    at = normalize_axis(axis, dy.ndim)
    parts = op.split(dy, None, at)
    return tuple(op.squeeze(part, at) for part in parts)


@gradient(op.strided_slice)
def strided_slice(
    x: TensorType, dy: Any, begin: Any, end: Any, strides: Any, slice_mode: str
) -> Any:
    """dx = dy where the slice reads, 0 elsewhere."""
    return op.strided_slice_dx(dy, x.known_shape, begin, end, strides, slice_mode)


@gradient(op.strided_slice_dx)
def strided_slice_dx(dy_: Any, begin: Any, end: Any, strides: Any, slice_mode: str) -> Any:
    """Scattering is undone by slicing."""
    return op.strided_slice(dy_, begin, end, strides, slice_mode)


@gradient(op.take)
def take(x: Any, dy: Any, indices: Any, axis: int | None, mode: str) -> Any:
    """dx = dy added up by index."""
    return op.take_dx(x, dy, indices, axis, mode), None


@gradient(op.take_dx)
def take_dx(dy_: Any, indices: Any, axis: int | None, mode: str) -> Any:
    """Linear in dy, and independent of the values of x."""
    return op.zeros_like(dy_), op.take(dy_, indices, axis, mode), None


@gradient(op.embedding)
def embedding(x: TensorType, dy: Any, indices: Any, padding_idx: Any) -> Any:
    """dx = rows of dy added up by index, but for those of the padding."""
    if padding_idx is not None:
        kept = op.not_equal(indices, padding_row(x, padding_idx))
        kept = op.reshape(kept, (*indices.shape, *[1] * (dy.ndim - indices.ndim)))
        dy = op.where(kept, dy, op.zeros_like(dy))
    return op.embedding_dx(dy, indices, x.known_shape), None


@gradient(op.embedding_dx)
def embedding_dx(dy_: Any, indices: Any) -> Any:
    """Linear in dy."""
    return op.embedding(dy_, indices), None


@gradient(op.cast)
def cast(data: TensorType, dy: Any) -> Any:
    """dx = dy in the dtype of x; integers, bool and float8 have no gradient."""
    return op.cast(dy, data.dtype) if is_float(data.dtype) else None


@gradient(op.broadcast_to)
def broadcast_to(x: TensorType, dy: Any) -> Any:
    """dx = dy summed over the repetitions."""
    return collapse(dy, x)


@gradient(op.repeat)
def repeat(x: TensorType, dy: Any, repeats: int, axis: int | None) -> Any:
    """dx = dy summed over the repetitions; unlike `repeat_dx` this does not keep x alive."""
    shape = x.known_shape if axis is not None else (x.size,)
    at = 0 if axis is None else normalize_axis(axis, x.ndim)
    parts = op.reshape(dy, (*shape[: at + 1], repeats, *shape[at + 1 :]))
    return op.reshape(op.sum(parts, at + 1), x.known_shape)


@gradient(op.repeat_dx)
def repeat_dx(dy_: Any, repeats: int, axis: int | None) -> Any:
    """Linear in dy, and independent of the values of x."""
    return op.zeros_like(dy_), op.repeat(dy_, repeats, axis)


@gradient(op.swap_axis)
def swap_axis(dy: Any, axis1: int, axis2: int) -> Any:
    """An exchange undoes itself."""
    return op.swap_axis(dy, axis1, axis2)
