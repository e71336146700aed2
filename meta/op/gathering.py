"""Operators that read and write at indices.

An index is from 0 to the size of its dimension less 1. What reads as NumPy does (`take`,
`take_along_axis`, `index_select`, `adv_index`) counts negative ones from the end; operators that
torch alone has do not. On the CPU another index raises IndexOutOfRange. On CUDA it does with
META_CHECK_INDICES; without, it is moved to the nearest end of its dimension, so no call reads or
writes outside of a tensor.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from meta.base.dtype import is_float
from meta.base.errors import TypeInferError
from meta.base.registry import OPERATORS
from meta.ir.types import Dim
from meta.op.core import InOut, Ints, Tensor, Weight, op
from meta.op.core.axes import Args, Axes, along, labels_of
from meta.op.core.check import (
    broadcast_shapes,
    extents_of,
    normalize_axis,
    require,
    require_same_dtype,
    require_shape,
)
from meta.op.core.function import as_operand
from meta.op.core.indices import IndexRange, into_axis
from meta.op.core.names import Names
from meta.op.shapes import broadcast_to, padding_row, require_index


def _require_like(x: Tensor, expected: Tensor, name: str) -> None:
    fits = x.shape == expected.shape and x.dtype == expected.dtype
    require(fits, f"{name} has another type", expected=expected, found=x)


def _require_within(part: Tensor, whole: tuple[Dim, ...], what: str) -> None:
    fits = len(part.shape) == len(whole) and all(
        not (isinstance(p, int) and isinstance(w, int)) or p <= w
        for p, w in zip(part.shape, whole, strict=True)
    )
    expected = f"as many axes as {list(whole)}, and no longer ones"
    require(fits, what, expected=expected, found=part)


def _require_elements(data: Tensor, indexed: tuple[Dim, ...], picked: tuple[Dim, ...]) -> None:
    fits = 0 not in indexed or 0 in picked
    require(fits, "an axis without elements cannot be indexed", found=data)


def _along(x: Tensor, axis: int) -> tuple[IndexRange, ...]:
    return (into_axis("indices", x, axis, "x", from_end=True),)


@op(axes=along("x", "indices"), composed=True, complex=True, indices=_along)
def take_along_axis(x: Tensor, indices: Tensor, axis: int = -1) -> Tensor:
    """Along ``axis``, the elements that ``indices`` name: for axis 1,
    ``y[i, j, k] = x[i, indices[i, j, k], k]``.

    ``indices``: integers with as many axes as ``x``; but for ``axis`` both are broadcast. Negative
    ones count from the end. The result has the dtype of ``x``. A call of the program broadcasts
    nothing: its indices have, but for ``axis``, no longer axes than ``x``, and the result has their
    shape. Raises TypeInferError if they do not fit, or if the axis has no element to read, and
    IndexOutOfRange for an index outside [-extent, extent): on CUDA with META_CHECK_INDICES only;
    without it the nearest element is read.
    """
    at = normalize_axis(axis, x.ndim)
    require_index(indices)
    # Along the indexed axis the extent of the indices is not limited.
    own = indices.shape[at] if at < indices.ndim else 0
    extents = (*x.shape[:at], own, *x.shape[at + 1 :])
    _require_within(indices, extents, "the indices do not fit x")
    _require_elements(x, x.shape[at : at + 1], indices.shape)
    return x.with_shape(indices.shape)


@take_along_axis.calls
def _take_along_axis(x: Any, indices: Any, axis: int = -1) -> Any:
    x, indices = as_operand(x), as_operand(indices)
    require(
        x.ndim == indices.ndim,
        "the indices do not fit x",
        expected=f"{x.ndim} axes",
        found=f"{indices.ndim} axes",
    )
    at = normalize_axis(axis, x.ndim)
    own, its = x.shape[at], indices.shape[at]
    if x.shape[:at] != indices.shape[:at] or x.shape[at + 1 :] != indices.shape[at + 1 :]:
        x_others = (*x.shape[:at], 1, *x.shape[at + 1 :])
        i_others = (*indices.shape[:at], 1, *indices.shape[at + 1 :])
        try:
            others: Any = broadcast_shapes(x_others, i_others)
        except TypeInferError as error:
            error.what = "the indices do not fit x"
            raise
        x = broadcast_to(x, (*others[:at], own, *others[at + 1 :]))
        indices = broadcast_to(indices, (*others[:at], its, *others[at + 1 :]))
    return take_along_axis.plain(x, indices, at)


@op(axes=along("x", "dy", "indices"), complex=True, indices=_along)
def take_along_axis_dx(x: Tensor, dy: Tensor, indices: Tensor, axis: int = -1) -> Tensor:
    """The gradient of `take_along_axis` at ``x``: zeros of its type, plus ``dy`` at every index.

    Duplicates add up, half precision in float32. Of ``x`` only the type counts.
    """
    _require_like(dy, take_along_axis.type_function(x, indices, axis), "dy")
    return x


def _coordinates(data: Tensor, indices: Tensor) -> Iterator[IndexRange]:
    depth = indices.shape[0]
    assert isinstance(depth, int)
    for axis, extent in enumerate(data.shape[:depth]):
        yield IndexRange("indices", extent, f"axis {axis} of data", along=(0, axis))


@op(complex=True, indices=_coordinates)
def gather_nd(data: Tensor, indices: Tensor) -> Tensor:
    """The slices of ``data`` at the coordinates ``indices[:, i, j, ...]``:
    ``y[i, j] = data[indices[0, i, j], indices[1, i, j], ...]``.

    ``indices``: integers of shape (m, *rest), m at most ``data.ndim``. The result has the shape
    (*rest, *data.shape[m:]). Raises TypeInferError if m is greater or an axis has no element, and
    IndexOutOfRange as `take_along_axis`.
    """
    require_index(indices)
    require(indices.ndim >= 1, "indices must have a first axis of coordinates", found=indices)
    depth = indices.shape[0]
    if not isinstance(depth, int) or depth > data.ndim:
        raise TypeInferError(
            "the first axis of indices names the leading axes of data",
            expected=f"at most {data.ndim} coordinates",
            found=indices,
        )
    _require_elements(data, data.shape[:depth], indices.shape[1:])
    return data.with_shape((*indices.shape[1:], *data.shape[depth:]))


@op(complex=True, indices=_coordinates)
def gather_nd_dx(data: Tensor, indices: Tensor, dy: Tensor) -> Tensor:
    """The gradient of `gather_nd` at ``data``: zeros of its type, plus ``dy`` at every index read.

    Duplicates add up, half precision in float32. Of ``data`` only the type counts.
    """
    _require_like(dy, gather_nd.type_function(data, indices), "dy")
    return data


def _gather_axes(args: Args) -> Iterable[Axes]:
    """The axes of what takes slices along an axis, by indices that may have several."""
    name = "index" if "index" in args else "indices"
    indices = tuple(f"i{i}" for i in range(args[name].ndim))
    if args["axis"] is None:
        return (Axes({name: indices}, (indices,), (name,)),)
    at = normalize_axis(args["axis"], args["x"].ndim)
    x = labels_of(args["x"].ndim, (at,))
    result = (*x[:at], *indices, *x[at + 1 :])
    return (Axes({"x": x, name: indices}, (result,), ("x",), ("axis",)),)


def _table_axes(args: Args) -> Iterable[Axes]:
    table = labels_of(args["x"].ndim, (0,))
    indices = tuple(f"i{i}" for i in range(args["indices"].ndim))
    tensors = {"x": table, "indices": indices}
    return (Axes(tensors, ((*indices, *table[1:]),), ("indices",)),)


@op(
    axes=_gather_axes,
    complex=True,
    indices=lambda x, axis: (into_axis("index", x, axis, "x", from_end=True),),
)
def index_select(x: Tensor, axis: int, index: Tensor) -> Tensor:
    """The slices of ``x`` along ``axis`` that ``index``, a vector of integers, names.

    The result has the dtype of ``x`` and its shape but for the axis, which is as long as ``index``.
    Negative indices count from the end. Raises IndexOutOfRange as `take` does, whose case it is.
    """
    require(index.ndim == 1, "index must be a vector", expected="ndim 1", found=index)
    taken: Tensor = take.type_function(x, index, axis, "raise")
    return taken


def _into_x(x: Tensor, axis: int) -> tuple[IndexRange, ...]:
    return (into_axis("index", x, axis, "x"),)


@op(axes=along("x", "index", "src"), composed=True, complex=True, indices=_into_x)
def scatter(x: Tensor, axis: int, index: Tensor, src: Tensor) -> Tensor:
    """``x`` with elements of ``src`` in the places along ``axis`` that ``index`` names: for axis 1,
    ``y[i, index[i, j, k], k] = src[i, j, k]``.

    ``index``: integers with as many axes as ``x`` and, but for ``axis``, no longer ones; ``src`` is
    no shorter anywhere, and has the dtype of ``x``, as the result has. In a call ``src`` may be a
    number. Where indices are equal one of their elements is written, which is not specified; the
    gradient reaches all, as torch's. Raises TypeInferError if they do not fit, and IndexOutOfRange
    for an index outside [0, extent): on CUDA with META_CHECK_INDICES only; without it the nearest
    place is meant.
    """
    take_along_axis.type_function(x, index, axis)
    require_same_dtype(x, src)
    _require_within(index, src.shape, "index does not fit src")
    return x


def _source(x: Any, index: Any, src: Any) -> tuple[Any, Any, Any]:
    """Return arguments of which a number is an array."""
    if isinstance(src, bool | int | float):
        x, index = as_operand(x), as_operand(index)
        src = OPERATORS["full_like"](index, src, x.dtype)
    return x, index, src


@scatter.calls
def _scatter(x: Any, axis: int, index: Any, src: Any) -> Any:
    x, index, src = _source(x, index, src)
    return scatter.plain(x, axis, index, src)


@op(axes=along("x", "y", "dy", "index", "src"), complex=True, indices=_into_x)
def scatter_dx(x: Tensor, y: Tensor, dy: Tensor, index: Tensor, src: Tensor, axis: int) -> Tensor:
    """The gradient of `scatter` at ``x``: ``dy``, but 0 where an element was written.

    Of ``x``, ``y`` (the result) and ``src`` only the types count.
    """
    scatter.type_function(x, axis, index, src)
    _require_like(y, x, "y")
    _require_like(dy, x, "dy")
    return x


@op(like=scatter, composed=True, indices=_into_x)
def scatter_add() -> None:
    """``x`` plus elements of ``src`` in the places along ``axis`` that ``index`` names: for axis 1,
    ``y[i, index[i, j, k], k] += src[i, j, k]``.

    Equal indices add up, half precision in float32; bool counts as "or". Shapes and indices as for
    `scatter`.
    """


@scatter_add.calls
def _scatter_add(x: Any, axis: int, index: Any, src: Any) -> Any:
    x, index, src = _source(x, index, src)
    return scatter_add.plain(x, axis, index, src)


REDUCTIONS = ("prod", "amin", "amax")
"""How `scatter_reduce` may reduce in a program."""


@op(axes=along("x", "index", "src"), composed=True, indices=_into_x)
def scatter_reduce(x: Tensor, axis: int, index: Tensor, src: Tensor, reduce: str) -> Tensor:
    """``x`` with each place along ``axis`` that ``index`` names reduced with the elements of
    ``src`` that belong to it: for axis 1 and "prod", ``y[i, index[i, j, k], k] *= src[i, j, k]``.

    ``reduce``: "sum", "prod", "mean", "amin" or "amax"; a NaN stays. ``include_self``: False leaves
    out what was in ``x``, where an element of ``src`` is. Half precision is multiplied in float32;
    integers wrap, and their mean is rounded down. The gradient of an extremum is shared evenly
    among equal ones. Shapes, dtypes and indices as for `scatter`; not bool.
    """
    require(reduce in REDUCTIONS, "unknown reduction", expected=", ".join(REDUCTIONS), found=reduce)
    require(x.dtype != "bool", "bool has no order", expected="a dtype of numbers")
    scatter.type_function(x, axis, index, src)
    return x


@op(complex=True, indices=_coordinates)
def scatter_nd(data: Tensor, indices: Tensor, updates: Tensor, mode: str = "update") -> Tensor:
    """``data`` with ``updates`` written to the coordinates ``indices[:, i, j, ...]``, or added.

    What `gather_nd` reads there is, for ``mode`` "update", ``updates`` (where coordinates are equal
    one of them, which is not specified; the gradient reaches all); for "add" it is what was there
    plus all of them, half precision added in float32. ``indices``: integers of shape (m, *rest);
    ``updates``: the dtype of ``data`` and the shape (*rest, *data.shape[m:]). The result has the
    type of ``data``. Raises IndexOutOfRange as `take_along_axis`.
    """
    require(mode in ("update", "add"), "unknown mode", expected="update or add", found=mode)
    _require_like(updates, gather_nd.type_function(data, indices), "updates")
    return data


def _written(x: Tensor, indices: Tensor, axis: int) -> Iterator[IndexRange]:
    depth = indices.shape[0]
    assert isinstance(depth, int)
    for field in range(depth):
        into = f"axis {axis + field} of x"
        along = (0, field) if depth > 1 else None
        yield IndexRange("indices", x.shape[axis + field], into, along=along)


@op(complex=True, indices=_written)
def assign_at(x: InOut, indices: Tensor, value: Tensor, axis: int = 0) -> tuple[()]:
    """Overwrite, in place, what coordinates name along the axes of ``x`` from ``axis`` on: for
    axis 1 and two coordinates, ``x[i, indices[0, j], indices[1, j], k] = value[i, j, k]``.

    indices: integers of shape (m, *rest), m at least 1. axis: at most ``x.ndim - m``.
    value: the dtype of x and the shape (*x.shape[:axis], *rest, *x.shape[axis + m:]). Where
    coordinates are equal one of their values is written, which is not specified. Returns x, the
    array that was given. Raises TypeInferError if they do not fit, and IndexOutOfRange as
    `take_along_axis`.
    """
    require(0 <= axis <= x.ndim, "axis is out of range", expected=f"0 to {x.ndim}", found=axis)
    within = gather_nd.type_function(x.with_shape(x.shape[axis:]), indices)
    require(indices.shape[0] != 0, "there are no coordinates", found=indices)
    _require_like(value, x.with_shape((*x.shape[:axis], *within.shape)), "value")
    return ()


def _ranges(inputs: tuple[Tensor, ...]) -> Iterator[IndexRange]:
    x, *indices = inputs
    for axis in range(len(indices)):
        into = f"axis {axis} of inputs[0]"
        yield IndexRange("inputs", x.shape[axis], into, from_end=True, field=axis + 1)


@op(complex=True, indices=_ranges)
def adv_index(inputs: tuple[Tensor, ...]) -> Tensor:
    """``x[i0, i1, ...]`` with numpy's meaning, for inputs (x, i0, i1, ...).

    The indices, of any integer dtypes, broadcast together and name elements of the leading axes of
    x; the result has their common shape in place of these axes. Negative indices count from the
    end. TypeInferError for more indices than axes, or an empty axis; IndexOutOfRange for an index
    outside [-extent, extent): on CUDA with META_CHECK_INDICES only, without it the nearest element
    is read.
    """
    require(len(inputs) > 0, "inputs is empty", expected="a tensor, then its indices")
    x, *indices = inputs
    fits = len(indices) <= x.ndim
    expected = f"at most {x.ndim}"
    require(fits, "there are more indices than axes", expected=expected, found=len(indices))
    for index in indices:
        require_index(index)
    picked = broadcast_shapes(*(i.shape for i in indices))
    fits = 0 not in x.shape[: len(indices)] or 0 in picked
    require(fits, "nothing can be picked of an empty axis", found=x)
    return x.with_shape((*picked, *x.shape[len(indices) :]))


@op(complex=True, indices=_ranges)
def adv_index_dx(dy: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
    """The gradient of `adv_index` at x: zeros of its type, plus ``dy`` at every index.

    Duplicates add up, half precision in float32. Of x only the type counts.
    """
    result = adv_index.type_function(inputs)
    require_shape(dy, result, "dy has another shape than the result of adv_index")
    return inputs[0]


MODES = ("raise", "clip", "wrap", "fast")
"""What `take` may do about indices out of range."""


def _gathered_range(x: Tensor, axis: int | None, mode: str) -> tuple[IndexRange, ...]:
    return (into_axis("indices", x, axis, "x", from_end=True),) if mode == "raise" else ()


@op(axes=_gather_axes, complex=True, indices=_gathered_range, names=Names("array_api"))
def take(x: Tensor, indices: Tensor, axis: int | None = None, mode: str = "raise") -> Tensor:
    """The slices of ``x`` along ``axis`` (None: of flattened ``x``) that ``indices`` name.

    The result has the shape of ``indices`` in place of the axis. ``mode``, as in numpy: "raise",
    negative indices count from the end, and one outside [-extent, extent) is an IndexOutOfRange: on
    CUDA with META_CHECK_INDICES only, without it the nearest element is read. "clip": an index is
    moved to the nearest end, so -1 is the first. "wrap": it is counted modulo the extent, so -1 is
    the last. "fast": a promise that all are in [0, extent); else an unspecified element is read.
    """
    require(mode in MODES, "unknown mode", expected=", ".join(MODES), found=mode)
    require_index(indices)
    nothing: tuple[Dim, ...] = ()
    before, extents, after = nothing, x.shape, nothing
    if axis is not None:
        at = normalize_axis(axis, x.ndim)
        before, extents, after = x.shape[:at], x.shape[at : at + 1], x.shape[at + 1 :]
    fits = 0 not in extents or 0 in indices.shape
    require(fits, "nothing can be taken of an empty axis", found=str(x))
    return x.with_shape((*before, *indices.shape, *after))


@op(complex=True, indices=_gathered_range)
def take_dx(
    x: Tensor, dy: Tensor, indices: Tensor, axis: int | None = None, mode: str = "raise"
) -> Tensor:
    """The gradient of `take` at ``x``: zeros of its type, plus ``dy`` at every index taken.

    Duplicates add up. Of ``x`` only the type counts. Indices are read as by `take`.
    """
    taken = take.type_function(x, indices, axis, mode)
    require_shape(dy, taken, "dy has another shape than the result of take")
    return x


@op(axes=_table_axes, composed=True, indices=lambda x: (into_axis("indices", x, 0, "x"),))
def embedding(x: Weight, indices: Tensor, padding_idx: int | None = None) -> Tensor:
    """Rows of a table: ``x[indices]`` of shape ``indices.shape + x.shape[1:]``.

    A call has torch's order: ``embedding(indices, weight, padding_idx=None)``, ``weight`` being the
    table x. padding_idx: a row that is read like the others and gets no gradient; a negative one
    counts from the end. Raises TypeInferError if there is no such row, and IndexOutOfRange for an
    index outside [0, rows): on CUDA with META_CHECK_INDICES only, without it the nearest row is
    read.

    >>> meta.embedding(meta.array([0, 2]), meta.ones((3, 4))).shape
    (2, 4)
    """
    require(x.ndim >= 1, "x must have an axis of rows", found=str(x))
    if padding_idx is not None:
        padding_row(x, padding_idx)
    rows: Tensor = take.type_function(x, indices, 0, "clip")
    return rows


@embedding.calls
def _embedding(indices: Any, weight: Any, padding_idx: int | None = None) -> Any:
    indices, weight = as_operand(indices), as_operand(weight)
    if is_float(indices.dtype):
        raise TypeInferError(
            "indices must be integers",
            op="embedding",
            expected="embedding(indices, weight)",
            found=f"{indices.dtype}{list(indices.shape)} and {weight.dtype}{list(weight.shape)}",
            hint="the indices come first, then the table, as in torch",
        )
    return embedding.plain(weight, indices, padding_idx)


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
    shape = extents_of((num_weight, *row) if isinstance(num_weight, int) else num_weight)
    fits = len(shape) > 0 and dy.shape == (*indices.shape, *shape[1:])
    expected = f"shape {[*indices.shape, *shape[1:]]}"
    require(fits, "dy does not fit indices and num_weight", expected=expected, found=dy)
    return dy.with_shape(shape)
