"""What joins, splits, repeats and turns tensors, and of matrices triangles and diagonals."""

from itertools import accumulate, combinations_with_replacement, pairwise
from itertools import combinations as without_replacement

import numpy as np

from meta import op
from meta.frontend.aten.arguments import (
    at_least_1d,
    axis_of,
    cast_or_take_real,
    constant,
    promote,
    value_of,
)
from meta.frontend.aten.converters.creation import ranged
from meta.frontend.aten.converters.shapes import at_least
from meta.frontend.aten.converters.slices import sliced
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible, constant_value
from meta.frontend.core.arguments import SLICE_END
from meta.ir.dims import SymbolicDim, product

# Joining.


@aten("cat", "concat", "concatenate", op.concat)
def cat(tensors, *, dim):
    """A vector without elements may stand beside tensors of any shape."""
    tensors = promote(*tensors)
    kept = [t for t in tensors if t.ndim != 1 or tuple(t.shape) != (0,)]
    if not kept:
        return tensors[0] if len(tensors) == 1 else op.concat(tensors, 0)
    return op.concat(tuple(kept), dim)


@aten("stack", "_stack", op.stack)
def stack(tensors, *, dim):
    return op.stack(promote(*tensors), dim)


@aten("hstack", op.concat)
def hstack(tensors):
    tensors = [at_least_1d(t) for t in tensors]
    return cat(tensors, dim=0 if tensors[0].ndim == 1 else 1)


@aten("vstack", "row_stack", op.concat)
def vstack(tensors):
    return cat([at_least(t, 2) for t in tensors], dim=0)


@aten("dstack", op.concat)
def dstack(tensors):
    return cat([at_least(t, 3) for t in tensors], dim=2)


@aten("column_stack", op.concat)
def column_stack(tensors):
    columns = [op.reshape(t, (product(t.shape), 1)) if t.ndim < 2 else t for t in tensors]
    return cat(columns, dim=1)


@aten("block_diag", op.concat, op.zeros)
def block_diag(tensors, *, call):
    blocks = promote(*(at_least(t, 2) for t in tensors))
    columns = [b.shape[1] for b in blocks]
    rows = []
    for i, block in enumerate(blocks):
        split_by_sizes = [
            block if i == k else op.zeros((block.shape[0], n), block.dtype, str(call.device))
            for k, n in enumerate(columns)
        ]
        rows.append(op.concat(tuple(split_by_sizes), 1))
    return op.concat(tuple(rows), 0)


@aten("_chunk_cat", op.concat, op.zeros)
def chunk_cat(tensors, *, dim, num_chunks, call):
    """Parts of all tensors side by side: a row for each part, the last ones filled with zeros."""
    rows = []
    for t in promote(*tensors):
        axis = axis_of(dim, t.ndim)
        size = -(-t.shape[axis] // num_chunks)
        missing = size * num_chunks - t.shape[axis]
        if missing:
            shape = (*t.shape[:axis], missing, *t.shape[axis + 1 :])
            t = op.concat((t, op.zeros(shape, t.dtype, str(call.device))), axis)
        rows.append(op.reshape(t, (*t.shape[:axis], num_chunks, -1)))
    return op.concat(tuple(rows), rows[0].ndim - 1)


@aten("pad_sequence", op.stack, op.pad)
def pad_sequence(tensors, *, batch_first, padding_value, padding_side):
    longest = max(t.shape[0] for t in tensors)
    padded = []
    for t in tensors:
        missing = longest - t.shape[0]
        pair = (missing, 0) if padding_side == "left" else (0, missing)
        value = padding_value if "float" in t.dtype else int(padding_value)
        widths = (pair, *((0, 0),) * (t.ndim - 1))
        padded.append(op.pad(t, widths, constant_values=value))
    return op.stack(tuple(padded), 0 if batch_first else 1)


# Splitting.


def split_by_sizes(x, sizes, axis):
    """The parts of these sizes along an axis, which they fill."""
    ends = tuple(accumulate(sizes))[:-1]
    if not sizes:
        return ()
    if not ends:
        return (x,)
    if any(isinstance(n, SymbolicDim) for n in (*sizes, x.shape[axis])):
        begins = (0, *ends)
        return tuple(sliced(x, axis, b, b + n) for b, n in zip(begins, sizes, strict=True))
    return tuple(op.split(x, ends, axis))


def chunks(extent, size):
    """Return sizes of parts, all but the last of one size."""
    if isinstance(extent, int) and isinstance(size, int):
        if size == 0:
            return (0,)
        whole, rest = divmod(extent, size)
        return (size,) * whole + (rest,) * (rest > 0) or (0,)
    count = 1 if extent == size else _ratio(extent, size)
    if not isinstance(count, int):
        raise Unconvertible(f"how many parts of {size} an axis of {extent} has is not known")
    return (size,) * count


def _ratio(extent, size):
    return extent.exactly_by(size) if isinstance(extent, SymbolicDim) else None


@aten("split.Tensor", "unsafe_split.Tensor", "split_copy.Tensor", op.split)
def split(x, *, split_size, dim):
    axis = axis_of(dim, x.ndim)
    return split_by_sizes(x, chunks(x.shape[axis], split_size), axis)


@aten("split_with_sizes", "split_with_sizes_copy", "unsafe_split_with_sizes", op.split)
def split_with_sizes(x, *, split_sizes, dim):
    return split_by_sizes(x, split_sizes, axis_of(dim, x.ndim))


@aten("split.sizes", op.split)
def split_sizes(x, *, split_size, dim):
    return split_by_sizes(x, split_size, axis_of(dim, x.ndim))


@aten("chunk", "unsafe_chunk", op.split)
def chunk(x, *, chunks: int, dim):
    return chunked(x, chunks, axis_of(dim, x.ndim))


def chunked(x, count, axis):
    extent = x.shape[axis]
    if not isinstance(extent, int):
        size = _ratio(extent, count)
        if size is None:
            raise Unconvertible(f"an axis of {extent} is not known to have {count} equal parts")
        return split_by_sizes(x, (size,) * count, axis)
    size = -(-extent // count)
    return split_by_sizes(x, (0,) * count if extent == 0 else chunks(extent, size), axis)


def tensor_split_sections(x, sections, axis):
    """Parts of which the first are longer by 1, where they cannot be equal."""
    extent = x.shape[axis]
    if not isinstance(extent, int):
        return chunked(x, sections, axis)
    size, longer = divmod(extent, sections)
    return split_by_sizes(x, tuple(size + (i < longer) for i in range(sections)), axis)


def tensor_split_indices(x, indices, axis):
    """Parts between indices, which are read as bounds of slices."""
    return tuple(sliced(x, axis, a, b) for a, b in pairwise((0, *indices, SLICE_END)))


@aten("tensor_split.sections", op.split)
def tensor_split(x, *, sections, dim):
    return tensor_split_sections(x, sections, axis_of(dim, x.ndim))


@aten("tensor_split.indices", op.split)
def tensor_split_at(x, *, indices, dim):
    return tensor_split_indices(x, indices, axis_of(dim, x.ndim))


@aten("tensor_split.tensor_indices_or_sections", op.split)
def tensor_split_by(x, where, *, dim):
    now = constant_value(where)
    if now is None:
        raise Unconvertible("where to split depends on the values of inputs")
    axis, numbers = axis_of(dim, x.ndim), [int(n) for n in now.numpy().reshape(-1)]
    if now.ndim == 0:
        return tensor_split_sections(x, numbers[0], axis)
    return tensor_split_indices(x, numbers, axis)


def _register_split(name, axis):
    def along(x):
        return axis(x) if callable(axis) else axis

    @aten(f"{name}.int", op.split)
    def into(x, *, sections):
        return tensor_split_sections(x, sections, along(x))

    @aten(f"{name}.array", op.split)
    def at(x, *, indices):
        return tensor_split_indices(x, indices, along(x))


_register_split("hsplit", lambda x: 0 if x.ndim == 1 else 1)
_register_split("vsplit", 0)
_register_split("dsplit", 2)


@aten("unbind.int", "unbind_copy.int", op.unstack)
def unbind(x, *, dim):
    axis = axis_of(dim, x.ndim)
    if not isinstance(x.shape[axis], int):
        raise Unconvertible(f"how many parts an axis of {x.shape[axis]} has is not known")
    whole = (*x.shape[:axis], *x.shape[axis + 1 :])
    return tuple(op.reshape(p, whole) for p in split_by_sizes(x, (1,) * x.shape[axis], axis))


# Repeating and turning.


@aten("repeat", op.tile, op.reshape, op.broadcast_to)
def repeat(x, *, repeats):
    return tiled(x, repeats)


@aten("tile", op.tile, op.reshape, op.broadcast_to)
def tile(x, *, dims):
    return tiled(x, dims)


def tiled(x, counts):
    """x as a whole, repeated along each axis; how often may be an extent."""
    if all(isinstance(n, int) for n in counts):
        return op.tile(x, counts)
    counts = (1,) * (x.ndim - len(counts)) + tuple(counts)
    own = (1,) * (len(counts) - x.ndim) + tuple(x.shape)
    pairs = tuple(zip(counts, own, strict=True))
    x = op.reshape(x, tuple(n for _, extent in pairs for n in (1, extent)))
    x = op.broadcast_to(x, tuple(n for pair in pairs for n in pair))
    return op.reshape(x, tuple(product(pair) for pair in pairs))


@aten("repeat_interleave.self_int", op.repeat, op.broadcast_to, ignore=("output_size",))
def repeat_interleave(x, *, repeats, dim):
    if dim is None:
        x, dim = op.reshape(x, (product(x.shape),)), 0
    x = at_least_1d(x)
    axis = axis_of(dim, x.ndim)
    if isinstance(repeats, int):
        return op.repeat(x, repeats, axis)
    before, after = x.shape[: axis + 1], x.shape[axis + 1 :]
    wide = op.broadcast_to(op.expand_dims(x, axis + 1), (*before, repeats, *after))
    return op.reshape(wide, (*x.shape[:axis], x.shape[axis] * repeats, *after))


def repeat_indices(repeats, total, call):
    """Which element each place of the result is of, by how often each is repeated."""
    ends = op.cumsum(op.astype(repeats, "int64"), 0)
    if total is None:
        now = constant_value(repeats)
        if now is not None:
            counts = now.numpy()
            return constant(np.repeat(np.arange(len(counts)), counts), "int64", call)
        zero, one = (constant(n, "int64", call) for n in (0, 1))
        places = op.dynamic_arange(zero, op.sum(op.astype(repeats, "int64")), one, "int64")
    else:
        places = op.arange(0, total, 1, "int64", str(call.device))
    return op.searchsorted(ends, places, "right")


@aten("repeat_interleave.Tensor", op.searchsorted, op.cumsum)
def repeat_interleave_indices(repeats, *, output_size, call):
    return cast_or_take_real(repeat_indices(repeats, output_size, call), repeats.dtype)


@aten("repeat_interleave.self_Tensor", op.take, op.searchsorted, op.cumsum)
def repeat_interleave_by(x, repeats, *, dim, output_size, call):
    if dim is None:
        x, dim = op.reshape(x, (product(x.shape),)), 0
    x, repeats = at_least_1d(x), at_least_1d(repeats)
    axis = axis_of(dim, x.ndim)
    if repeats.shape[0] == 1 and x.shape[axis] != 1:
        repeats = op.broadcast_to(repeats, (x.shape[axis],))
    return op.take(x, repeat_indices(repeats, output_size, call), axis)


@aten("flip", op.flip)
def flip(x, *, dims):
    axes = tuple(axis_of(d, x.ndim) for d in dims)
    return op.flip(x, axes) if x.ndim and axes else x


@aten("fliplr", op.flip)
def fliplr(x):
    return op.flip(x, 1)


@aten("flipud", op.flip)
def flipud(x):
    return op.flip(x, 0)


@aten("roll", op.roll, op.take)
def roll(x, *, shifts, dims, call):
    if 0 in x.shape or x.ndim == 0:
        return x
    shifts = shifts if isinstance(shifts, tuple) else (shifts,)
    dims = (dims,) if isinstance(dims, int) else dims
    if all(isinstance(s, int) for s in shifts):
        return op.roll(x, shifts, dims) if dims else op.roll(x, shifts[0])
    if not dims:
        flat = op.reshape(x, (product(x.shape),))
        return op.reshape(roll(flat, shifts=shifts, dims=(0,), call=call), tuple(x.shape))
    for shift, dim in zip(shifts, dims, strict=True):
        axis = axis_of(dim, x.ndim)
        places = ranged(0, x.shape[axis], 1, "int64", call)
        places = op.subtract(places, value_of(shift))
        x = op.take(x, op.remainder(places, value_of(x.shape[axis])), axis)
    return x


@aten("rot90", op.flip, op.swapaxes)
def rot90(x, *, k, dims):
    return op.rot90(x, k, dims)


# Triangles and diagonals.


@aten("diagonal", "diagonal_copy", op.diagonal)
def diagonal(x, *, offset, dim1, dim2):
    return op.diagonal(x, offset, dim1, dim2)


@aten("linalg_diagonal", op.diagonal)
def linalg_diagonal(x, *, offset, dim1, dim2):
    return op.diagonal(x, offset, dim1, dim2)


@aten("diagonal_backward", op.diagonal_dx)
def diagonal_backward(dy, *, input_sizes, offset, dim1, dim2):
    return op.diagonal_dx(dy, input_sizes, offset, dim1, dim2)


def embedded(x, offset, first, second):
    """Matrices in two axes of the result with x's last axis on a diagonal, else 0."""
    ndim = x.ndim + 1
    a, b = axis_of(first, ndim), axis_of(second, ndim)
    size = x.shape[-1] + abs(offset)
    shape = list(x.shape[:-1])
    for axis in sorted((a, b)):
        shape.insert(axis, size)
    return op.diagonal_dx(x, tuple(shape), offset, a, b)


@aten("diag_embed", op.diagonal_dx)
def diag_embed(x, *, offset, dim1, dim2):
    return embedded(x, offset, dim1, dim2)


@aten("diag", op.diagonal, op.diagonal_dx)
def diag(x, *, diagonal):
    return op.diag(x, diagonal)


@aten("diagflat", op.diagonal_dx)
def diagflat(x, *, offset):
    return embedded(op.reshape(x, (product(x.shape),)), offset, 0, 1)


@aten("trace_backward", op.diagonal_dx)
def trace_backward(dy, *, sizes):
    rows = op.broadcast_to(op.reshape(dy, (1,)), (min(sizes),))
    return op.diagonal_dx(rows, sizes, 0, 0, 1)


# Choosing.


@aten("cartesian_prod", op.reshape, op.broadcast_to, op.stack)
def cartesian_prod(tensors):
    if len(tensors) == 1:
        return tensors[0]
    grids = op.meshgrid(*tensors, indexing="ij")
    return op.stack(tuple(op.reshape(g, (product(g.shape),)) for g in grids), 1)


@aten("combinations", op.take)
def combinations(x, *, r, with_replacement, call):
    choose = combinations_with_replacement if with_replacement else without_replacement
    if r == 0:
        return op.reshape(sliced(x, 0, 0, 0), (0,))
    rows = list(choose(range(x.shape[0]), r))
    return op.take(x, constant(np.array(rows).reshape(-1, r), "int64", call), 0)
