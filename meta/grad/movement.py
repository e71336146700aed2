"""Gradients of the operators that reverse, shift, tile and mask, in their order."""

from typing import Any

from meta import op
from meta.grad.core import gradient
from meta.ir.types import TensorType
from meta.op.movement import tile_counts


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


@gradient(op.mesh_grid)
def mesh_grid(x: TensorType, dy: Any) -> Any:
    """Each vector gets its result's gradient, summed over the other axes."""
    dys = dy if isinstance(dy, tuple) else (dy,)
    return tuple(
        op.reshape(op.sum(d, i, False, True) if len(x) > 1 else d, t.known_shape)
        for i, (t, d) in enumerate(zip(x, dys, strict=True))
    )


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
