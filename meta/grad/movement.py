"""Gradients of operators that join, split, slice, pad and rearrange."""

from typing import Any

from meta import op
from meta.grad.core import gradient, not_differentiable
from meta.ir.types import TensorType
from meta.op.core.check import normalize_axis
from meta.op.movement import MIRRORS, tile_counts
from meta.op.shapes import split_points


@gradient(op.reverse)
def reverse(dy: Any, axis: int) -> Any:
    """Reversing undoes itself."""
    return op.reverse(dy, axis)


@gradient(op.flip)
def flip(dy: Any, axes: Any) -> Any:
    """Reversing undoes itself."""
    return op.flip(dy, axes)


@gradient(op.reverse_sequence)
def reverse_sequence(sequence_length: Any, dy: Any, seq_axis: int, batch_axis: int) -> Any:
    """Reversing undoes itself; lengths have no gradient."""
    return op.reverse_sequence(dy, sequence_length, seq_axis, batch_axis), None


@gradient(op.sequence_mask)
def sequence_mask(sequence_length: Any, dy: Any, axis: int) -> Any:
    """dx = dy where x is kept, 0 where it is not."""
    return op.sequence_mask(dy, sequence_length, 0.0, axis), None


@gradient(op.roll)
def roll(dy: Any, shift: Any, axis: Any) -> Any:
    """dx = dy, shifted back."""
    back = -shift if isinstance(shift, int) else tuple(-s for s in shift)
    return op.roll(dy, back, axis)


@gradient(op.tile)
def tile(x: TensorType, dy: Any, reps: Any) -> Any:
    """dx = dy summed over the repetitions."""
    counts, extents = tile_counts(x.known_shape, reps)
    parts = [v for pair in zip(counts, extents, strict=True) for v in pair]
    repeats = tuple(range(0, len(parts), 2))
    total = op.sum(op.reshape(dy, tuple(parts)), repeats) if repeats else dy
    return op.reshape(total, x.known_shape)


@gradient(op.triu)
def triu(dy: Any, k: int) -> Any:
    """dx = dy in the same triangle."""
    return op.triu(dy, k)


@gradient(op.tril)
def tril(dy: Any, k: int) -> Any:
    """dx = dy in the same triangle."""
    return op.tril(dy, k)


@gradient(op.diagonal)
def diagonal(x: TensorType, dy: Any, offset: int, axis1: int, axis2: int) -> Any:
    """dx = dy on the diagonal, 0 elsewhere."""
    return op.diagonal_dx(dy, x.known_shape, offset, axis1, axis2)


@gradient(op.diagonal_dx)
def diagonal_dx(dy_: Any, offset: int, axis1: int, axis2: int) -> Any:
    """Placing on a diagonal is undone by reading it."""
    return op.diagonal(dy_, offset, axis1, axis2)


@gradient(op.depth_to_space)
def depth_to_space(dy: Any, block_size: int, layout: str, mode: str) -> Any:
    """The inverse permutation."""
    return op.space_to_depth(dy, block_size, layout, mode)


@gradient(op.space_to_depth)
def space_to_depth(dy: Any, block_size: int, layout: str, mode: str) -> Any:
    """The inverse permutation."""
    return op.depth_to_space(dy, block_size, layout, mode)


@gradient(op.pad)
def pad(dy: Any, pad_width: Any, pad_mode: str) -> Any:
    """dx = dy, with what lies outside added to the elements that it repeats."""
    return op.pad_dx(dy, pad_width, pad_mode)


@gradient(op.mirror_pad)
def mirror_pad(dy: Any, pad_width: Any, mode: str) -> Any:
    """dx = dy, with the mirror images added to what they show."""
    return op.pad_dx(dy, pad_width, MIRRORS[mode])


@gradient(op.pad_dx)
def pad_dx(dy_: Any, pad_width: Any, pad_mode: str) -> Any:
    """Linear in dy: the adjoint of the adjoint pads, constants being 0."""
    return op.pad(dy_, pad_width, 0.0, pad_mode)


@gradient(op.strided_set)
def strided_set(dy: Any, begin: Any, end: Any, strides: Any) -> Any:
    """dv = the slice of dy; ddata = dy with 0 there."""
    dv = op.strided_slice(dy, begin, end, strides)
    return op.strided_set(dy, op.zeros_like(dv), begin, end, strides), dv


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
