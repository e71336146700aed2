"""Operators that rearrange, select, repeat or convert elements. Add one here.

Of the views (`reshape`, `batch_flatten`, `expand_dims`, `squeeze`) the result shares the buffer of
the argument where that is compact.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from meta.base.bounds import MAX_RESULTS
from meta.base.errors import TypeInferError
from meta.ir.dims import product, total
from meta.ir.types import UNKNOWN, Dim, UnknownDim
from meta.op.core import CallValues, DType, Ints, Tensor, View, op
from meta.op.core.axes import inverse_permutation, permutation, require_new_axes, swapped
from meta.op.core.check import (
    broadcast_shapes,
    fit,
    normalize_axes,
    normalize_axis,
    require,
    require_extents,
)
from meta.op.core.indices import IndexRange, into_axis
from meta.op.core.same_dtype import require_same_dtype
from meta.op.core.slicing import keeps_all, reshaped, slice_ranges


def view_of_first(call: CallValues) -> None:
    """Declare the result as the buffer of the first argument in another shape."""
    call.out = View(0, call.out)


@op(float8=True)
def reshape(x: Tensor, shape: Ints, reverse: bool = False) -> Tensor:
    """The elements of ``x`` in row-major order, in another shape. A view.

    ``shape`` may contain one -1, an extent to be inferred, and 0, which copies the extent of the
    axis at the same place of ``x``. ``reverse`` counts these places from the last axis. Of an
    empty ``x`` a 0 without a -1 is just 0. TypeInferError if the number of elements differs.
    """
    return x.with_shape(reshaped(x, shape, reverse))


reshape.declare(view_of_first)


@op(float8=True)
def transpose(x: Tensor, axes: Ints | None = None) -> Tensor:
    """Permute axes: axis i of the result is axis ``axes[i]`` of ``x``. None reverses them."""
    return x.with_shape(tuple(x.shape[a] for a in permutation(axes, x.ndim)))


@op(schema=transpose, float8=True)
def transpose_dx(x: Tensor, axes: Ints | None = None) -> Tensor:
    """Undo `transpose`: axis ``axes[i]`` of the result is axis i of ``x``."""
    return x.with_shape(tuple(x.shape[a] for a in inverse_permutation(axes, x.ndim)))


@op(float8=True)
def batch_flatten(x: Tensor) -> Tensor:
    """Merge all axes but the first: ``[n, ...]`` to ``[n, k]``. A view."""
    require(x.ndim >= 1, "x must have a batch axis", found=str(x))
    return x.with_shape((x.shape[0], product(x.shape[1:])))


batch_flatten.declare(view_of_first)


@op(float8=True)
def expand_dims(x: Tensor, axis: int, num_newaxis: int = 1) -> Tensor:
    """Insert ``num_newaxis`` axes of extent 1 before ``axis``. A view.

    A negative ``axis`` counts from behind the last axis: -1 appends.
    """
    require_new_axes(num_newaxis)
    at = normalize_axis(axis, x.ndim + 1)
    return x.with_shape((*x.shape[:at], *(1,) * num_newaxis, *x.shape[at:]))


expand_dims.declare(view_of_first)


def squeezed_axes(x: Tensor, axis: int | tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the axes that `squeeze` removes."""
    if axis is None:
        return tuple(i for i, d in enumerate(x.shape) if d == 1)
    return () if axis == () else normalize_axes(axis, x.ndim)


@op(float8=True)
def squeeze(x: Tensor, axis: Ints | None = None) -> Tensor:
    """Remove axes of extent 1: those named, or all of them. A view.

    TypeInferError for a named axis of another extent.
    """
    gone = squeezed_axes(x, axis)
    require(
        all(x.shape[a] == 1 for a in gone),
        "the axis does not have extent 1",
        found=f"{axis} of {x}",
    )
    return x.with_shape(tuple(d for i, d in enumerate(x.shape) if i not in gone))


squeeze.declare(view_of_first)


def split_points(x: tuple[Tensor, ...], axis: int) -> tuple[int, ...]:
    """Return where, along ``axis`` of the concatenation, one part ends and the next begins."""
    at = normalize_axis(axis, x[0].ndim)
    return tuple(accumulate(t.static_shape[at] for t in x))[:-1]


def _alike(x: tuple[Tensor, ...]) -> None:
    require(len(x) > 0, "x is empty", expected="at least one tensor")
    require_same_dtype(*x)


@op(float8=True)
def concatenate(x: tuple[Tensor, ...], axis: int = 0) -> Tensor:
    """Join tensors along an axis. They agree in dtype and in all other extents."""
    _alike(x)
    at = normalize_axis(axis, x[0].ndim)
    others = [(*t.shape[:at], *t.shape[at + 1 :]) for t in x]
    common = _common(others)
    require(
        common is not None and all(t.ndim == x[0].ndim for t in x),
        f"the tensors differ in an axis other than {at}",
        found=", ".join(map(str, x)),
    )
    assert common is not None
    joined = total(t.shape[at] for t in x)
    return x[0].with_shape((*common[:at], joined, *common[at:]))


def _common(shapes: Sequence[tuple[Dim, ...]]) -> tuple[Dim, ...] | None:
    """Return the shape that all are, with what any of them tells of it; None if they differ."""
    result = shapes[0]
    for shape in shapes[1:]:
        if not fit(shape, result):
            return None
        result = tuple(
            b if isinstance(a, UnknownDim) else a for a, b in zip(result, shape, strict=True)
        )
    return result


@op(schema=concatenate, float8=True)
def concatenate_dx(x: tuple[Tensor, ...], axis: int = 0) -> tuple[int, ...]:
    """Where to `split` the gradient of `concatenate`: a tuple of indices, known now."""
    concatenate.type_function(x, axis)
    return split_points(x, axis)


def split_bounds(
    extent: int, indices_or_sections: int | tuple[int, ...] | None
) -> tuple[tuple[int, int], ...]:
    """Return begin and end of every part that `split` makes of an axis."""
    if isinstance(indices_or_sections, tuple):
        bounds = (0, *indices_or_sections, extent)
        require(
            all(a <= b for a, b in pairwise(bounds)),
            "the indices must ascend and lie within the axis",
            expected=f"0 <= index <= {extent}",
            found=indices_or_sections,
        )
        return tuple(pairwise(bounds))
    sections = extent if indices_or_sections is None else indices_or_sections
    require(
        0 < sections <= MAX_RESULTS and extent % sections == 0,
        "the axis cannot be split into equal parts",
        expected=f"a divisor of {extent} up to {MAX_RESULTS}, or a tuple of indices",
        found=indices_or_sections,
    )
    step = extent // sections
    return tuple((i * step, i * step + step) for i in range(sections))


@op(float8=True)
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
        parts = _unknown_parts(indices_or_sections)
    else:
        raise TypeInferError("an axis of unknown extent cannot be split", found=str(x))
    return tuple(x.with_shape((*x.shape[:at], part, *x.shape[at + 1 :])) for part in parts)


def _unknown_parts(indices_or_sections: int | tuple[int, ...]) -> list[Dim]:
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
    require(
        all(a <= b for a, b in pairwise(begun)),
        "the indices must ascend",
        found=indices_or_sections,
    )
    return [*(b - a for a, b in pairwise(begun)), UNKNOWN]


@op(float8=True)
def stack(x: tuple[Tensor, ...], axis: int = 0) -> Tensor:
    """Join tensors of equal shape and dtype along a new axis (-1: behind the last)."""
    _alike(x)
    shape = _common([t.shape for t in x])
    require(shape is not None, "the tensors differ in shape", found=", ".join(map(str, x)))
    assert shape is not None
    at = normalize_axis(axis, x[0].ndim + 1)
    return x[0].with_shape((*shape[:at], len(x), *shape[at:]))


@op(float8=True)
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
        elif not keeps_all(begins[i], ends[i], steps[i % len(steps)], slice_mode):
            shape[i] = UNKNOWN
    return x.with_shape(tuple(shape))


@op
def strided_slice_dx(
    dy: Tensor,
    shape: Ints,
    begin: Ints,
    end: Ints,
    strides: Ints | None = None,
    slice_mode: str = "end",
) -> Tensor:
    """Zeros of the given shape, with ``dy`` where `strided_slice` of these arguments reads."""
    full = dy.with_shape((shape,) if isinstance(shape, int) else shape)
    require_extents(full.shape)
    part: Tensor = strided_slice.type_function(full, begin, end, strides, slice_mode)
    require(dy.shape == part.shape, "dy has another shape than the slice", expected=part, found=dy)
    return full


MODES = ("raise", "clip", "wrap", "fast")
"""What `take` may do about indices out of range."""


def _taken(x: Tensor, indices: Tensor, axis: int | None, mode: str) -> Tensor:
    require(mode in MODES, "unknown mode", expected=", ".join(MODES), found=mode)
    require_index(indices)
    extents: tuple[object, ...] = (
        x.shape if axis is None else (x.shape[normalize_axis(axis, x.ndim)],)
    )
    require(
        0 not in extents or 0 in indices.shape,
        "nothing can be taken of an empty axis",
        found=str(x),
    )
    if axis is None:
        return x.with_shape(indices.shape)
    at = normalize_axis(axis, x.ndim)
    return x.with_shape((*x.shape[:at], *indices.shape, *x.shape[at + 1 :]))


def require_index(indices: Tensor) -> None:
    """Raise TypeInferError unless the tensor holds integers."""
    require(
        "int" in indices.dtype,
        "indices must be integers",
        expected="an integer dtype",
        found=indices,
    )


def _taken_range(x: Tensor, axis: int | None, mode: str) -> tuple[IndexRange, ...]:
    return (into_axis("indices", x, axis, "x", from_end=True),) if mode == "raise" else ()


@op(indices=_taken_range)
def take(x: Tensor, indices: Tensor, axis: int | None = None, mode: str = "raise") -> Tensor:
    """The slices of ``x`` along ``axis`` (None: of flattened ``x``) that ``indices`` name.

    The result has the shape of ``indices`` in place of the axis. ``mode``, as in numpy: "raise",
    negative indices count from the end, and one outside [-extent, extent) is an IndexOutOfRange: on
    CUDA with META_CHECK_INDICES only, without it the nearest element is read. "clip": an index is
    moved to the nearest end, so -1 is the first. "wrap": it is counted modulo the extent, so -1 is
    the last. "fast": a promise that all are in [0, extent); else an unspecified element is read.
    """
    return _taken(x, indices, axis, mode)


@op(indices=_taken_range)
def take_dx(
    x: Tensor, dy: Tensor, indices: Tensor, axis: int | None = None, mode: str = "raise"
) -> Tensor:
    """The gradient of `take` at ``x``: zeros of its type, plus ``dy`` at every index taken.

    Duplicates add up. Of ``x`` only the type counts. Indices are read as by `take`.
    """
    taken = _taken(x, indices, axis, mode)
    require(
        dy.shape == taken.shape,
        "dy has another shape than the result of take",
        expected=taken,
        found=dy,
    )
    return x


@op(indices=lambda x: (into_axis("indices", x, 0, "x"),))
def embedding(x: Tensor, indices: Tensor, padding_idx: int | None = None) -> Tensor:
    """Rows of a table: ``x[indices]`` of shape ``indices.shape + x.shape[1:]``.

    padding_idx: a row that is read like the others and gets no gradient; a negative one counts from
    the end. Raises TypeInferError if there is no such row, and IndexOutOfRange for an index outside
    [0, rows): on CUDA with META_CHECK_INDICES only, without it the nearest row is read.
    """
    require(x.ndim >= 1, "x must have an axis of rows", found=str(x))
    if padding_idx is not None:
        padding_row(x, padding_idx)
    return _taken(x, indices, 0, "clip")


def padding_row(x: Tensor, padding_idx: int) -> int:
    """Return the row of an embedding's padding, counted from the start; TypeInferError if there is
    none.
    """
    rows = x.shape[0]
    if not isinstance(rows, int):
        require(
            padding_idx >= 0, "a padding_idx from the end needs a known number of rows", found=x
        )
        return padding_idx
    fits = -rows <= padding_idx < rows
    expected = f"{-rows} <= padding_idx < {rows}"
    require(fits, "there is no row padding_idx", expected=expected, found=padding_idx)
    return padding_idx % rows


def _rows(num_weight: Ints) -> tuple[IndexRange, ...]:
    rows = num_weight if isinstance(num_weight, int) else num_weight[0]
    return (IndexRange("indices", rows, "the rows, of num_weight"),)


@op(indices=_rows)
def embedding_dx(dy: Tensor, indices: Tensor, num_weight: Ints) -> Tensor:
    """The gradient of `embedding` at the table: rows of ``dy`` added up by index.

    ``num_weight`` is the number of rows or the whole shape of the table. Raises IndexOutOfRange as
    `embedding`; where it does not, the gradient goes to the nearest row.
    """
    require_index(indices)
    row = dy.shape[indices.ndim :]
    shape = (num_weight, *row) if isinstance(num_weight, int) else num_weight
    require_extents(shape)
    require(
        len(shape) > 0 and dy.shape == (*indices.shape, *shape[1:]),
        "dy does not fit indices and num_weight",
        expected=f"shape {[*indices.shape, *shape[1:]]}",
        found=dy,
    )
    return dy.with_shape(shape)


@op(float8=True)
def cast(data: Tensor, dtype: DType) -> Tensor:
    """``data`` in another dtype. Floats are truncated to integers; a bool says whether not 0.

    To int8, int16 and int32 a float goes by way of int32, to uint8 and int64 by int64, of which the
    low bits are kept: 300.0 is 44 in int8. What that does not hold, and NaN, is its smallest number
    (0 in int8, int16 and uint8). So does torch on x86 processors; here all devices and dialects do.
    uint64 holds what is in its range; integers wrap.
    What is beyond the range of a floating point dtype becomes infinite, and of float8_e4m3fn, which
    has no infinity, its largest number, 448. Float8 is rounded to 4 (e5m2: 3) bits, and has no
    gradient, as integers have none.
    """
    return data.with_dtype(dtype)


@op(float8=True)
def broadcast_to(x: Tensor, shape: Ints) -> Tensor:
    """``x`` repeated along axes of extent 1, and along new leading axes, to have ``shape``."""
    wanted = (shape,) if isinstance(shape, int) else shape
    require_extents(wanted)
    require(
        broadcast_shapes(x.shape, wanted) == wanted,
        "x does not broadcast to the shape",
        found=shape,
    )
    return x.with_shape(wanted)


@op
def repeat(x: Tensor, repeats: int, axis: int | None = None) -> Tensor:
    """Every element ``repeats`` times in a row along ``axis``; None flattens ``x`` first."""
    require(repeats >= 0, "repeats is negative", found=repeats)
    if axis is None:
        return x.with_shape((product((*x.shape, repeats)),))
    at = normalize_axis(axis, x.ndim)
    extent = x.shape[at]
    longer = product((extent, repeats))
    return x.with_shape((*x.shape[:at], longer, *x.shape[at + 1 :]))


@op
def repeat_dx(x: Tensor, dy: Tensor, repeats: int, axis: int | None = None) -> Tensor:
    """The gradient of `repeat` at ``x``, of which only the type counts: sums of repetitions."""
    repeated: Tensor = repeat.type_function(x, repeats, axis)
    require(dy.shape == repeated.shape, "dy has another shape than the result of repeat", found=dy)
    return x


@op(float8=True)
def swap_axis(x: Tensor, axis1: int, axis2: int) -> Tensor:
    """``x`` with two axes exchanged."""
    return x.with_shape(tuple(x.shape[i] for i in swapped(axis1, axis2, x.ndim)))
