"""Operators that reverse, shift, tile and mask along axes, or move blocks between them. Add one
here; plain reshaping, slicing and joining is in `transform.py`.
"""

from meta.ir.types import UNKNOWN, Dim, SymbolicDim, UnknownDim
from meta.op.core import Ints, Scalar, Tensor, op
from meta.op.core.check import (
    fit,
    normalize_axes,
    normalize_axis,
    require,
    require_extents,
    require_ndim,
)
from meta.op.core.same_dtype import require_same_dtype
from meta.op.transform import require_index


@op
def reverse(x: Tensor, axis: int = 0) -> Tensor:
    """``x`` with the elements along one axis in reversed order."""
    normalize_axis(axis, x.ndim)
    return x


@op
def flip(x: Tensor, axes: Ints) -> Tensor:
    """``x`` with the elements along each of ``axes`` in reversed order; () changes nothing.

    TypeInferError for an axis that is out of range or named twice.
    """
    flipped_axes(axes, x.ndim)
    return x


def flipped_axes(axes: int | tuple[int, ...], ndim: int) -> tuple[int, ...]:
    """Return the axes that `flip` reverses, sorted."""
    return () if axes == () else normalize_axes(axes, ndim)


def _lengths(x: Tensor, lengths: Tensor, batch_axis: int, name: str) -> None:
    require_index(lengths)
    require(
        fit(lengths.shape, (x.shape[batch_axis],)),
        f"{name} must have one entry for every element of the batch",
        expected=f"shape [{x.shape[batch_axis]}]",
        found=lengths,
    )


@op
def reverse_sequence(
    x: Tensor, sequence_length: Tensor, seq_axis: int = 1, batch_axis: int = 0
) -> Tensor:
    """``x`` with the first ``sequence_length[b]`` elements along ``seq_axis`` reversed.

    b is the index along ``batch_axis``, another axis; ``sequence_length``: integers, [batch]. A
    length outside [0, extent of seq_axis] is moved to the nearest of the two.
    """
    axis, batch = normalize_axis(seq_axis, x.ndim), normalize_axis(batch_axis, x.ndim)
    require(axis != batch, "seq_axis and batch_axis are the same axis", found=seq_axis)
    _lengths(x, sequence_length, batch, "sequence_length")
    return x


@op
def sequence_mask(
    x: Tensor, sequence_length: Tensor, mask_value: Scalar = 0.0, axis: int = 0
) -> Tensor:
    """``x`` with ``mask_value`` from position ``sequence_length[b]`` of ``axis`` on.

    x: [length, batch, ...] with axis 0, [batch, length, ...] with axis 1; any dtype that
    has mask_value. sequence_length: integers, [batch].
    """
    require(x.ndim >= 2, "x must have an axis of positions and one of the batch", found=x)
    at = normalize_axis(axis, x.ndim)
    require(at < 2, "the positions are not on one of the first two axes", found=f"axis={axis}")
    _lengths(x, sequence_length, 1 - at, "sequence_length")
    return x


@op
def roll(x: Tensor, shift: Ints, axis: Ints | None = None) -> Tensor:
    """``x`` shifted along axes; what leaves at one end comes back at the other.

    shift: how far, towards higher indices; one for each of ``axis``, or one for all. axis: one or
    several, of which one named twice is shifted by the sum; None shifts ``x`` as if flattened.
    """
    roll_shifts(shift, axis, x.ndim)
    return x


def roll_shifts(
    shift: int | tuple[int, ...], axis: int | tuple[int, ...] | None, ndim: int
) -> dict[int, int]:
    """Return by how much each axis is shifted; axis None is read as axis 0 of a flattened tensor.

    TypeInferError if the numbers of shifts and axes differ.
    """
    axes = (0,) if axis is None else (axis,) if isinstance(axis, int) else axis
    shifts = (shift,) * (len(axes)) if isinstance(shift, int) else shift
    require(
        len(shifts) == len(axes),
        "shift must be an int, or one for every axis",
        expected=f"{len(axes)} ints",
        found=shift,
    )
    total: dict[int, int] = {}
    for a, s in zip(axes, shifts, strict=True):
        at = normalize_axis(a, 1 if axis is None else ndim)
        total[at] = total.get(at, 0) + s
    return total


@op
def tile(x: Tensor, reps: Ints) -> Tensor:
    """``x`` repeated as a whole ``reps[i]`` times along axis i.

    The shorter of the shape and ``reps`` is filled up with ones in front, as in numpy.
    """
    counts, extents = tile_counts(x.shape, reps)
    require(min(counts, default=0) >= 0, "reps is negative", found=reps)
    return x.with_shape(
        tuple(
            d * n if not isinstance(d, UnknownDim) else d if n == 1 else UNKNOWN
            for d, n in zip(extents, counts, strict=True)
        )
    )


def tile_counts(
    shape: tuple[Dim, ...], reps: int | tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[Dim, ...]]:
    """Return repetitions and extents of `tile`, both as long as the result has axes."""
    counts = (reps,) if isinstance(reps, int) else reps
    ndim = max(len(counts), len(shape))
    return (1,) * (ndim - len(counts)) + counts, (1,) * (ndim - len(shape)) + tuple(shape)


@op
def mesh_grid(x: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The coordinates of a grid: result i has element ``x[i][k]`` wherever index i is k.

    x: vectors or 0-d tensors of one dtype, one for every axis of the results, in this order (numpy
    and torch call it "ij").
    """
    require(len(x) > 0, "x is empty", expected="at least one tensor")
    require(
        all(t.ndim <= 1 for t in x),
        "an axis of a grid must be a vector",
        found=", ".join(map(str, x)),
    )
    require_same_dtype(*x)
    shape = tuple(t.shape[0] if t.shape else 1 for t in x)
    return tuple(t.with_shape(shape) for t in x)


@op
def triu(x: Tensor, k: int = 0) -> Tensor:
    """``x`` with 0 below diagonal k of its matrices, the last two axes.

    Diagonal 0 is the main one; a positive k lies above it, a negative one below.
    """
    require(x.ndim >= 2, "x must hold matrices", expected="2 axes or more", found=x)
    return x


@op(schema=triu)
def tril(x: Tensor, k: int = 0) -> Tensor:
    """``x`` with 0 above diagonal k of its matrices, the last two axes. See `triu`."""
    require(x.ndim >= 2, "x must hold matrices", expected="2 axes or more", found=x)
    return x


def _two_axes(ndim: int, axis1: int, axis2: int) -> tuple[int, int]:
    a, b = normalize_axis(axis1, ndim), normalize_axis(axis2, ndim)
    require(a != b, "a diagonal needs two different axes", found=f"{axis1} and {axis2}")
    return a, b


@op
def diagonal(x: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """The elements whose index along ``axis2`` is that along ``axis1`` plus ``offset``.

    Result: the other axes of x, then one along the diagonal, which may be empty.
    """
    a, b = _two_axes(x.ndim, axis1, axis2)
    rows, columns = x.shape[a], x.shape[b]
    length: Dim = UNKNOWN
    if isinstance(rows, int) and isinstance(columns, int):
        length = max(0, min(rows + min(offset, 0), columns - max(offset, 0)))
    return x.with_shape((*(d for i, d in enumerate(x.shape) if i not in (a, b)), length))


@op
def diagonal_dx(dy: Tensor, shape: Ints, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """Zeros of the given shape, with ``dy`` where `diagonal` of these arguments reads."""
    full = dy.with_shape((shape,) if isinstance(shape, int) else shape)
    require_extents(full.shape)
    part: Tensor = diagonal.type_function(full, offset, axis1, axis2)
    require(dy.shape == part.shape, "dy has another shape than the diagonal", expected=part)
    return full


def _blocks(x: Tensor, block_size: int, layout: str, mode: str) -> tuple[Dim, Dim, Dim, Dim]:
    """Return the extents of batch, channels, height and width."""
    require_ndim(x, 4, "x")
    require(layout in ("NCHW", "NHWC"), "unknown layout", expected="NCHW, NHWC", found=layout)
    require(mode in ("DCR", "CRD"), "unknown mode", expected="DCR, CRD", found=mode)
    require(block_size >= 1, "block_size must be positive", found=block_size)
    n, *rest = x.shape
    c, h, w = rest if layout == "NCHW" else (rest[2], *rest[:2])
    return n, c, h, w


def _quotient(extent: Dim, divisor: int, name: str) -> Dim:
    if isinstance(extent, UnknownDim):
        return UNKNOWN
    if isinstance(extent, SymbolicDim):
        return extent.exactly_by(divisor) or UNKNOWN
    require(extent % divisor == 0, f"{name} cannot be divided by {divisor}", found=extent)
    return extent // divisor


def _times(extent: Dim, factor: int) -> Dim:
    return UNKNOWN if isinstance(extent, UnknownDim) else extent * factor


@op
def depth_to_space(x: Tensor, block_size: int, layout: str = "NCHW", mode: str = "DCR") -> Tensor:
    """Spread channels over blocks of ``block_size`` * ``block_size`` places (pixel shuffle).

    x: [N, C * b * b, H, W], or NHWC. Result: [N, C, H * b, W * b] in the same layout. Place (i, j)
    of a block comes from channel (i * b + j) * C + c with mode "DCR", c * b * b + i * b + j with
    "CRD"; these are ONNX's modes, and "CRD" is torch's pixel_shuffle.
    """
    n, c, h, w = _blocks(x, block_size, layout, mode)
    c = _quotient(c, block_size**2, "the number of channels")
    h, w = _times(h, block_size), _times(w, block_size)
    return x.with_shape((n, c, h, w) if layout == "NCHW" else (n, h, w, c))


@op(schema=depth_to_space)
def space_to_depth(x: Tensor, block_size: int, layout: str = "NCHW", mode: str = "DCR") -> Tensor:
    """Undo `depth_to_space`: [N, C, H * b, W * b] to [N, C * b * b, H, W]."""
    n, c, h, w = _blocks(x, block_size, layout, mode)
    c = _times(c, block_size**2)
    h, w = _quotient(h, block_size, "the height"), _quotient(w, block_size, "the width")
    return x.with_shape((n, c, h, w) if layout == "NCHW" else (n, h, w, c))
