"""Operators that join, split, slice, pad and rearrange."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from meta.base.errors import TypeInferError
from meta.base.number import MAX_RESULTS
from meta.ir.dims import product, total
from meta.ir.types import UNKNOWN, Dim, SymbolicDim, UnknownDim
from meta.op.core import Ints, Scalar, Tensor, op
from meta.op.core.axes import Args, Axes, along, images, labels_of, last, new_axis
from meta.op.core.check import (
    extents_of,
    normalize_axes,
    normalize_axis,
    require,
    require_ndim,
    require_same_dtype,
    require_shape,
    shapes_compatible,
)
from meta.op.core.function import as_operand
from meta.op.core.names import Names
from meta.op.core.slicing import is_full_slice, slice_ranges
from meta.op.core.window import MODES, TORCH_MODES, flat_widths, max_padding, pad_pairs
from meta.op.shapes import require_index, split_bounds, split_points


@op(axes=along("x", none_is_all=True), complex=True, names=Names("array_api"))
def flip(x: Tensor, axis: Ints | None = None) -> Tensor:
    """``x`` with the elements along each of the axes in reversed order.

    ``axis`` is one axis or several; () changes nothing, None is all. TypeInferError for an axis
    that is out of range or named twice.
    """
    normalize_axes(axis, x.ndim)
    return x


def _lengths(x: Tensor, lengths: Tensor, batch_axis: int, name: str) -> None:
    require_index(lengths)
    require(
        shapes_compatible(lengths.shape, (x.shape[batch_axis],)),
        f"{name} must have one entry for every element of the batch",
        expected=f"shape [{x.shape[batch_axis]}]",
        found=lengths,
    )


def _sequence_axes(args: Args) -> Iterable[Axes]:
    ndim = args["x"].ndim
    if "batch_axis" in args:
        along, batch = (normalize_axis(args[n], ndim) for n in ("seq_axis", "batch_axis"))
    else:
        along = normalize_axis(args["axis"], ndim)
        batch = 1 - along
    x = labels_of(ndim, (along,))
    return (Axes({"x": x, "sequence_length": x[batch : batch + 1]}, (x,)),)


@op(axes=_sequence_axes)
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


@op(axes=_sequence_axes)
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


@op(axes=along("x"), complex=True, names=Names("array_api"))
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
    fits = len(shifts) == len(axes)
    expected = f"{len(axes)} ints"
    require(fits, "shift must be an int, or one for every axis", expected=expected, found=shift)
    found: dict[int, int] = {}
    for a, s in zip(axes, shifts, strict=True):
        at = normalize_axis(a, 1 if axis is None else ndim)
        found[at] = found.get(at, 0) + s
    return found


@op(complex=True, names=Names("array_api"))
def tile(x: Tensor, reps: Ints) -> Tensor:
    """``x`` repeated as a whole ``reps[i]`` times along axis i.

    The shorter of the shape and ``reps`` is filled up with ones in front, as in numpy.
    """
    counts, extents = tile_counts(x.shape, reps)
    require(min(counts, default=0) >= 0, "reps is negative", found=reps)
    return x.with_shape(tuple(map(product, zip(extents, counts, strict=True))))


def tile_counts(
    shape: tuple[Dim, ...], reps: int | tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[Dim, ...]]:
    """Return repetitions and extents of `tile`, both as long as the result has axes."""
    counts = (reps,) if isinstance(reps, int) else reps
    ndim = max(len(counts), len(shape))
    return (1,) * (ndim - len(counts)) + counts, (1,) * (ndim - len(shape)) + tuple(shape)


@op(axes=last(x=2), complex=True, names=Names("array_api"))
def triu(x: Tensor, k: int = 0) -> Tensor:
    """``x`` with 0 below diagonal k of its matrices, the last two axes.

    Diagonal 0 is the main one; a positive k lies above it, a negative one below.
    """
    require(x.ndim >= 2, "x must hold matrices", expected="2 axes or more", found=x)
    return x


@op(like=triu, complex=True, names=Names("array_api"))
def tril() -> None:
    """``x`` with 0 above diagonal k of its matrices, the last two axes. See `triu`."""


def _diagonal_axes(args: Args) -> Iterable[Axes]:
    ndim = args["x"].ndim if "x" in args else len(extents_of(args["shape"]))
    mixed = [normalize_axis(args[n], ndim) for n in ("axis1", "axis2")]
    full = labels_of(ndim, mixed)
    part = (*(label for label in full if label is not None), None)
    numbers = ("axis1", "axis2")
    if "x" in args:
        return (Axes({"x": full}, (part,), ("x",), numbers),)
    return (Axes({"dy": part}, (full,), ("dy",), numbers, {"shape": full}),)


@op(axes=_diagonal_axes, complex=True, view_elsewhere=True)
def diagonal(x: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """The elements whose index along ``axis2`` is that along ``axis1`` plus ``offset``.

    Result: the other axes of x, then one along the diagonal, which may be empty.
    """
    a, b = normalize_axis(axis1, x.ndim), normalize_axis(axis2, x.ndim)
    require(a != b, "a diagonal needs two different axes", found=f"{axis1} and {axis2}")
    rows, columns = x.shape[a], x.shape[b]
    length: Dim = UNKNOWN
    if isinstance(rows, int) and isinstance(columns, int):
        length = max(0, min(rows + min(offset, 0), columns - max(offset, 0)))
    return x.with_shape((*(d for i, d in enumerate(x.shape) if i not in (a, b)), length))


@op(axes=_diagonal_axes, options=diagonal, complex=True)
def diagonal_dx(dy: Tensor, shape: Ints, *options: Any) -> Tensor:
    """Zeros of the given shape, with ``dy`` where `diagonal` of these arguments reads."""
    full = dy.with_shape(extents_of(shape))
    part: Tensor = diagonal.type_function(full, *options)
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


@op(axes=images("x", free="N"))
def depth_to_space(x: Tensor, block_size: int, layout: str = "NCHW", mode: str = "DCR") -> Tensor:
    """Spread channels over blocks of ``block_size`` * ``block_size`` places (pixel shuffle).

    x: [N, C * b * b, H, W], or NHWC. Result: [N, C, H * b, W * b] in the same layout. Place (i, j)
    of a block comes from channel (i * b + j) * C + c with mode "DCR", c * b * b + i * b + j with
    "CRD"; these are ONNX's modes, and "CRD" is torch's pixel_shuffle.
    """
    n, c, h, w = _blocks(x, block_size, layout, mode)
    c = _quotient(c, block_size**2, "the number of channels")
    h, w = product((h, block_size)), product((w, block_size))
    return x.with_shape((n, c, h, w) if layout == "NCHW" else (n, h, w, c))


@op(axes=images("x", free="N"), schema=depth_to_space)
def space_to_depth(x: Tensor, block_size: int, layout: str = "NCHW", mode: str = "DCR") -> Tensor:
    """Undo `depth_to_space`: [N, C, H * b, W * b] to [N, C * b * b, H, W]."""
    n, c, h, w = _blocks(x, block_size, layout, mode)
    c = product((c, block_size**2))
    h, w = _quotient(h, block_size, "the height"), _quotient(w, block_size, "the width")
    return x.with_shape((n, c, h, w) if layout == "NCHW" else (n, h, w, c))


def _padded(x: Tensor, pad_width: Ints, mode: str) -> Tensor:
    pairs = pad_pairs(pad_width, x.ndim)
    shape: list[Dim] = []
    for extent, pair in zip(x.shape, pairs, strict=True):
        if isinstance(extent, int):
            require(
                mode == "constant" or max(pair) <= max_padding(extent, mode),
                f"an axis of extent {extent} has too few elements for the {mode} padding",
                expected=f"at most {max_padding(extent, mode)} on a side",
                found=f"pad_width={pad_width} of {x}",
            )
        shape.append(total((extent, *pair)))
    return x.with_shape(tuple(shape))


@op(composed=True)
def pad(x: Tensor, pad_width: Ints, pad_value: Scalar = 0.0, pad_mode: str = "constant") -> Tensor:
    """``x`` with elements before and after it along every axis.

    A call is NumPy's, ``pad(x, pad_width, mode="constant", constant_values=0)``, with pad_width as
    a pair (before, after) for each axis, ((1, 0), (2, 2)); one pair for all axes; or one int for
    all sides.

    x: any dtype. pad_width: these pairs, flat; an int holds for all sides. pad_value: what
    "constant" puts there, a number that x's dtype has. pad_mode: "constant"; "edge" repeats the
    outermost element; "reflect" mirrors at the outermost element (b a of a b c gives c b a b c),
    "symmetric" at its outer border (b a a b c c b); "wrap" takes the elements of the other end (b c
    a b c a b). Result: extents grown by before + after. The modes are numpy's.

    Raises TypeInferError for a wrong number of widths, a negative one, or where there is less to
    mirror or repeat than asked for.
    """
    _require_mode(pad_mode)
    return _padded(x, pad_width, pad_mode)


@pad.calls
def _pad(
    x: Any,
    pad_width: int | Sequence[int] | Sequence[Sequence[int]],
    mode: str = "constant",
    constant_values: Any = 0,
) -> Any:
    x = as_operand(x)
    flat = flat_widths(pad_width, x.ndim)
    if isinstance(constant_values, tuple | list):
        what = "constant_values is one number"
        raise TypeInferError(what, op="pad", expected="a number", found=constant_values)
    return pad.plain(x, flat, constant_values, mode)


def _require_mode(mode: str) -> None:
    if mode not in MODES:
        called = TORCH_MODES.get(mode)
        hint = None if called is None else f'"{mode}" is called "{called}"'
        what = "unknown padding mode"
        raise TypeInferError(what, expected=", ".join(MODES), found=mode, hint=hint)


@op
def pad_dx(dy: Tensor, pad_width: Ints, pad_mode: str = "constant") -> Tensor:
    """The gradient of `pad`: every element of x gets the sum of dy at the places that read it.

    dy: of the padded shape. Result: the shape of x. Half precision is added in float32.
    """
    _require_mode(pad_mode)
    pairs = pad_pairs(pad_width, dy.ndim)
    shape = tuple(total((d, -sum(pair))) for d, pair in zip(dy.shape, pairs, strict=True))
    fits = all(not isinstance(d, int) or d >= 0 for d in shape)
    require(fits, "dy is smaller than its padding", found=f"pad_width={pad_width} of {dy}")
    _padded(dy.with_shape(shape), pad_width, pad_mode)
    return dy.with_shape(shape)


@op(complex=True)
def strided_set(
    data: Tensor, v: Tensor, begin: Ints, end: Ints, strides: Ints | None = None
) -> Tensor:
    """A copy of ``data`` with ``v`` in place of its slice ``[begin:end:strides]``.

    begin, end, strides: as in `strided_slice`. v: of the dtype of data and the shape of the slice.
    """
    part: Tensor = strided_slice.type_function(data, begin, end, strides, "end")
    require_same_dtype(data, v)
    require_shape(v, part, "v has another shape than the slice")
    return data


def _alike(arrays: tuple[Tensor, ...]) -> None:
    require(len(arrays) > 0, "arrays is empty", expected="at least one tensor")
    require_same_dtype(*arrays)


@op(axes=along("arrays"), float8=True, promotes=("arrays",), names=Names("array_api"))
def concat(arrays: tuple[Tensor, ...], axis: int | None = 0) -> Tensor:
    """Join tensors along an axis. They agree in dtype and in all other extents.

    By ``axis=None`` each is flattened first, and their shapes are free; the result is a vector.
    """
    _alike(arrays)
    if axis is None:
        return arrays[0].with_shape((total(product(t.shape) for t in arrays),))
    at = normalize_axis(axis, arrays[0].ndim)
    common = _common([(*t.shape[:at], *t.shape[at + 1 :]) for t in arrays])
    fits = common is not None and all(t.ndim == arrays[0].ndim for t in arrays)
    found = ", ".join(map(str, arrays))
    require(fits, f"the tensors differ in an axis other than {at}", found=found)
    assert common is not None
    joined = total(t.shape[at] for t in arrays)
    return arrays[0].with_shape((*common[:at], joined, *common[at:]))


def _common(shapes: Sequence[tuple[Dim, ...]]) -> tuple[Dim, ...] | None:
    """Return the shape that all are, with what any of them tells of it; None if they differ."""
    result = shapes[0]
    for shape in shapes[1:]:
        if not shapes_compatible(shape, result):
            return None
        result = tuple(
            b if isinstance(a, UnknownDim) else a for a, b in zip(result, shape, strict=True)
        )
    return result


@op(schema=concat, float8=True)
def concat_dx(arrays: tuple[Tensor, ...], axis: int | None = 0) -> tuple[int, ...]:
    """Where to `split` the gradient of `concat`: a tuple of indices, known now."""
    concat.type_function(arrays, axis)
    return split_points(arrays, axis)


@op(axes=along("x"), float8=True, view_elsewhere=True)
def split(x: Tensor, indices_or_sections: Ints | None = None, axis: int = 0) -> tuple[Tensor, ...]:
    """Cut ``x`` along an axis into several tensors.

    ``indices_or_sections`` is the number of equal parts (None: parts of extent 1), or the indices
    before which to cut: (2, 5) gives [0:2], [2:5] and [5:].
    """
    at = normalize_axis(axis, x.ndim)
    extent = x.shape[at]
    if isinstance(extent, int):
        parts: list[Dim] = [e - b for b, e in split_bounds(extent, indices_or_sections)]
    elif isinstance(extent, UnknownDim) and indices_or_sections is not None:
        parts = _unknown_sizes(indices_or_sections)
    else:
        raise TypeInferError("an axis of unknown extent cannot be split", found=str(x))
    return tuple(x.with_shape((*x.shape[:at], part, *x.shape[at + 1 :])) for part in parts)


def _unknown_sizes(indices_or_sections: int | tuple[int, ...]) -> list[Dim]:
    """Return the extents of the parts of an axis of unknown extent."""
    if isinstance(indices_or_sections, int):
        require(
            0 < indices_or_sections <= MAX_RESULTS,
            "the axis cannot be split into so many parts",
            expected=f"1 to {MAX_RESULTS}",
            found=indices_or_sections,
        )
        return [UNKNOWN] * indices_or_sections
    begun = (0, *indices_or_sections)
    fits = all(a <= b for a, b in pairwise(begun))
    require(fits, "the indices must ascend", found=indices_or_sections)
    return [*(b - a for a, b in pairwise(begun)), UNKNOWN]


@op(axes=new_axis("arrays"), float8=True, promotes=("arrays",), names=Names("array_api"))
def stack(arrays: tuple[Tensor, ...], axis: int = 0) -> Tensor:
    """Join tensors of equal shape and dtype along a new axis (-1: behind the last)."""
    _alike(arrays)
    shape = _common([t.shape for t in arrays])
    require(shape is not None, "the tensors differ in shape", found=", ".join(map(str, arrays)))
    assert shape is not None
    at = normalize_axis(axis, arrays[0].ndim + 1)
    return arrays[0].with_shape((*shape[:at], len(arrays), *shape[at:]))


@op(float8=True, view_elsewhere=True)
def strided_slice(
    x: Tensor, begin: Ints, end: Ints, strides: Ints | None = None, slice_mode: str = "end"
) -> Tensor:
    """``x[begin:end:strides]`` on the leading axes, one entry per axis (an int: the first axis).

    Bounds count from the end if negative and are clipped as in numpy; so, with a negative stride,
    an end of ``-extent - 1`` reaches the first element. A single stride holds for all axes. With
    ``slice_mode`` "size", ``end`` is the number of elements instead (-1: the rest).
    """
    begins, ends = ((v,) if isinstance(v, int) else v for v in (begin, end))
    steps = (strides,) if isinstance(strides, int) else strides or (1,)
    shape = list(x.shape)
    for i, picked in enumerate(slice_ranges(x.shape, begin, end, strides, slice_mode)):
        if picked is not None:
            shape[i] = len(picked)
        elif not is_full_slice(begins[i], ends[i], steps[i % len(steps)], slice_mode):
            shape[i] = UNKNOWN
    return x.with_shape(tuple(shape))


@op(options=strided_slice, complex=True)
def strided_slice_dx(dy: Tensor, shape: Ints, *options: Any) -> Tensor:
    """Zeros of the given shape, with ``dy`` where `strided_slice` of these arguments reads."""
    full = dy.with_shape(extents_of(shape))
    part: Tensor = strided_slice.type_function(full, *options)
    require_shape(dy, part, "dy has another shape than the slice")
    return full


@op(axes=along("x"), complex=True)
def repeat(x: Tensor, repeats: int, axis: int | None = None) -> Tensor:
    """Every element ``repeats`` times in a row along ``axis``; None flattens ``x`` first."""
    require(repeats >= 0, "repeats is negative", found=repeats)
    if axis is None:
        return x.with_shape((product((*x.shape, repeats)),))
    at = normalize_axis(axis, x.ndim)
    extent = x.shape[at]
    longer = product((extent, repeats))
    return x.with_shape((*x.shape[:at], longer, *x.shape[at + 1 :]))


@op(axes=along("x", "dy"), complex=True)
def repeat_dx(x: Tensor, dy: Tensor, repeats: int, axis: int | None = None) -> Tensor:
    """The gradient of `repeat` at ``x``, of which only the type counts: sums of repetitions."""
    repeated: Tensor = repeat.type_function(x, repeats, axis)
    require(dy.shape == repeated.shape, "dy has another shape than the result of repeat", found=dy)
    return x
