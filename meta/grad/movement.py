"""Gradients of operators that join, split, slice, pad and rearrange."""

from typing import Any

from meta import op
from meta.grad.core import gradient, gradients, not_differentiable
from meta.ir.types import TensorType
from meta.op.core.check import normalize_axis
from meta.op.movement import tile_counts
from meta.op.shapes import split_points

gradients(
    {
        # These undo themselves; lengths have no gradient.
        op.flip: lambda dy, axis: op.flip(dy, axis),
        op.reverse_sequence: lambda sequence_length, dy, *axes: (
            op.reverse_sequence(dy, sequence_length, *axes),
            None,
        ),
        op.sequence_mask: lambda sequence_length, dy, axis: (
            op.sequence_mask(dy, sequence_length, 0.0, axis),
            None,
        ),
        op.triu: lambda dy, k: op.triu(dy, k),
        op.tril: lambda dy, k: op.tril(dy, k),
        op.depth_to_space: lambda dy, *options: op.space_to_depth(dy, *options),
        op.space_to_depth: lambda dy, *options: op.depth_to_space(dy, *options),
        # The adjoint of the adjoint pads, constants being 0.
        op.pad: lambda dy, pad_width, pad_mode: op.pad_dx(dy, pad_width, pad_mode),
        op.pad_dx: lambda dy_, pad_width, pad_mode: op.pad.plain(dy_, pad_width, 0.0, pad_mode),
        op.split: lambda dy, axis: op.concat(dy if isinstance(dy, tuple) else (dy,), axis),
        # Reading and placing undo each other.
        op.diagonal_dx: lambda dy_, shape, *options: op.diagonal(dy_, *options),
        op.strided_slice_dx: lambda dy_, shape, *options: op.strided_slice(dy_, *options),
        op.repeat_dx: lambda dy_, *options: (op.zeros_like(dy_), op.repeat(dy_, *options)),
    }
)
not_differentiable(op.concat_dx, why="the result is a tuple of ints, known from the shapes")


@gradient(op.diagonal)
def diagonal(x: TensorType, dy: Any, *options: Any) -> Any:
    return op.diagonal_dx(dy, x.known_shape, *options)


@gradient(op.strided_slice)
def strided_slice(x: TensorType, dy: Any, *options: Any) -> Any:
    return op.strided_slice_dx(dy, x.known_shape, *options)


@gradient(op.concat)
def concat(arrays: tuple[TensorType, ...], dy: Any, axis: int | None) -> Any:
    parts = op.split(dy, split_points(arrays, axis), axis or 0)
    if axis is not None:
        return parts
    return tuple(op.reshape(p, t.known_shape) for p, t in zip(parts, arrays, strict=True))


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


@gradient(op.strided_set)
def strided_set(dy: Any, begin: Any, end: Any, strides: Any) -> Any:
    """dv = the slice of dy; ddata = dy with 0 there."""
    dv = op.strided_slice(dy, begin, end, strides)
    return op.strided_set(dy, op.zeros_like(dv), begin, end, strides), dv


@gradient(op.stack)
def stack(arrays: TensorType, dy: Any, axis: int) -> Any:
    """Every slice of dy goes to the tensor it came from."""
    at = normalize_axis(axis, dy.ndim)
    parts = op.split(dy, None, at)
    return tuple(op.squeeze(part, at) for part in parts)


@gradient(op.repeat)
def repeat(x: TensorType, dy: Any, repeats: int, axis: int | None) -> Any:
    """dx = dy summed over the repetitions; unlike `repeat_dx` this does not keep x alive."""
    shape = x.known_shape if axis is not None else (x.size,)
    at = 0 if axis is None else normalize_axis(axis, x.ndim)
    parts = op.reshape(dy, (*shape[: at + 1], repeats, *shape[at + 1 :]))
    return op.reshape(op.sum(parts, at + 1), x.known_shape)
