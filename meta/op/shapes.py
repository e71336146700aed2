"""Changes and queries of shapes.

The result of a view (`reshape`, `batch_flatten`, `expand_dims`, `squeeze`) shares the buffer of the
argument. Of ``like_type`` only the type counts. Shapes are part of the type,
so queries return Python ints, known without running anything; only `shape_as_tensor` makes a tensor
of them, for programs that compute with shapes.
"""

from collections.abc import Callable, Iterable
from itertools import accumulate, pairwise
from typing import Any

from meta.base.errors import ArgumentError, TypeInferError
from meta.base.methods import Overloads
from meta.base.number import MAX_RESULTS
from meta.base.registry import OPERATORS
from meta.ir.dims import product
from meta.ir.types import Dim
from meta.op.core import CallValues, Ints, Scalar, Tensor, View, op
from meta.op.core.axes import Args, Axes, AxesRule, labels_of
from meta.op.core.check import (
    broadcast_shapes,
    extents_of,
    inverse_permutation,
    normalize_axes,
    normalize_axis,
    permutation,
    require,
    require_new_axes,
    shape_of,
    shapes_compatible,
    swap_permutation,
)
from meta.op.core.function import as_operand
from meta.op.core.names import Names
from meta.op.core.reduction import sum_dtype
from meta.op.core.slicing import reshape_result
from meta.runtime.ndarray import ndarray


def view_of_first(call: CallValues) -> None:
    """Declare the result as the buffer of the first argument in another shape."""
    call.out = View(0, call.out)


@op(composed=True, float8=True)
def reshape(x: Tensor, shape: Ints, kept: Ints = ()) -> Tensor:
    """The elements of ``x`` in row-major order, in another shape.

    ``shape`` may contain one -1, an extent to be inferred: of an empty ``x`` only next to extents
    that are not 0. ``copy``: True gives memory of its own; None and False share that of ``x`` where
    it is compact. Of an array that is not, None shares it where its strides allow, else the result
    is a copy that takes no writes (`meta.runtime.view_copies`); False is an ArgumentError. In a
    program ``kept`` names axes that have the extent of ``x`` at the same place, whatever ``shape``
    says there: for several extents that are unknown. TypeInferError if the number of elements
    differs.
    """
    return x.with_shape(reshape_result(x, shape, kept))


@reshape.calls
def _reshape(x: Any, shape: Any, copy: bool | None = None) -> Any:
    if copy is None:
        return reshape.plain(x, shape)
    x = x if isinstance(x, Overloads) else as_operand(x)
    if not copy and isinstance(x, ndarray) and not x.key.compact:
        raise ArgumentError(
            "this array cannot be reshaped without a copy",
            op="reshape",
            expected="an array whose elements are in row-major order",
            found=f"strides {x.tensor.stride()} of shape {x.shape}",
            hint="copy=None",
        )
    found = reshape.plain(x, shape)
    return OPERATORS["copy"](found) if copy else found


def _permutation_axes(order: Callable[..., tuple[int, ...]], *names: str) -> AxesRule:
    """Return the axes of what permutes those of x, in the order that arguments and ndim give."""

    def rule(args: Args) -> Iterable[Axes]:
        x = labels_of(args["x"].ndim)
        return (Axes({"x": x}, (tuple(x[i] for i in order(*map(args.get, names), len(x))),)),)

    return rule


@op(
    axes=_permutation_axes(permutation, "axes"),
    float8=True,
    view_elsewhere=True,
    names=Names("array_api"),
)
def permute_dims(x: Tensor, axes: Ints | None = None) -> Tensor:
    """Permute axes: axis i of the result is axis ``axes[i]`` of ``x``. None reverses them."""
    return x.with_shape(tuple(x.shape[a] for a in permutation(axes, x.ndim)))


@op(axes=_permutation_axes(inverse_permutation, "axes"), schema=permute_dims, float8=True)
def permute_dims_dx(x: Tensor, axes: Ints | None = None) -> Tensor:
    """Undo `permute_dims`: axis ``axes[i]`` of the result is axis i of ``x``."""
    return x.with_shape(tuple(x.shape[a] for a in inverse_permutation(axes, x.ndim)))


@op(float8=True)
def batch_flatten(x: Tensor) -> Tensor:
    """Merge all axes but the first: ``[n, ...]`` to ``[n, k]``. A view."""
    require(x.ndim >= 1, "x must have a batch axis", found=str(x))
    return x.with_shape((x.shape[0], product(x.shape[1:])))


@op(float8=True, names=Names("array_api"))
def expand_dims(x: Tensor, axis: int, num_newaxis: int = 1) -> Tensor:
    """Insert ``num_newaxis`` axes of extent 1 before ``axis``. A view.

    A negative ``axis`` counts from behind the last axis: -1 appends.
    """
    require_new_axes(num_newaxis)
    at = normalize_axis(axis, x.ndim + 1)
    return x.with_shape((*x.shape[:at], *(1,) * num_newaxis, *x.shape[at:]))


def squeezed_axes(x: Tensor, axis: int | tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the axes that `squeeze` removes."""
    if axis is None:
        return tuple(i for i, d in enumerate(x.shape) if d == 1)
    return normalize_axes(axis, x.ndim)


@op(float8=True, names=Names("array_api"))
def squeeze(x: Tensor, axis: Ints | None = None) -> Tensor:
    """Remove axes of extent 1: those named, or all of them. A view.

    TypeInferError for a named axis of another extent.
    """
    gone = squeezed_axes(x, axis)
    fits = all(x.shape[a] == 1 for a in gone)
    if not fits:
        raise TypeInferError(
            "the axis does not have extent 1",
            found=f"{axis} of {x}",
            hint="leave the axis out, which drops those of extent 1",
        )
    return x.with_shape(tuple(d for i, d in enumerate(x.shape) if i not in gone))


def split_points(arrays: tuple[Tensor, ...], axis: int | None) -> tuple[int, ...]:
    """Return where, along ``axis`` of what `concat` gives, one part ends and the next begins."""
    if axis is None:
        return tuple(accumulate(t.size for t in arrays))[:-1]
    at = normalize_axis(axis, arrays[0].ndim)
    return tuple(accumulate(t.static_shape[at] for t in arrays))[:-1]


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


def require_index(indices: Tensor) -> None:
    """Raise TypeInferError unless the tensor holds integers."""
    fits = "int" in indices.dtype
    require(fits, "indices must be integers", expected="an integer dtype", found=indices)


def padding_row(x: Tensor, padding_idx: int) -> int:
    """Return an embedding's padding row counted from the start; TypeInferError for no row."""
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


@op(float8=True, view_elsewhere=True, names=Names("array_api"))
def broadcast_to(x: Tensor, shape: Ints) -> Tensor:
    """``x`` repeated along axes of extent 1, and along new leading axes, to have ``shape``."""
    wanted = extents_of(shape)
    fits = broadcast_shapes(x.shape, wanted) == wanted
    require(fits, "x does not broadcast to the shape", found=shape)
    return x.with_shape(wanted)


@op(axes=_permutation_axes(swap_permutation, "axis1", "axis2"), float8=True, view_elsewhere=True)
def swapaxes(x: Tensor, axis1: int, axis2: int) -> Tensor:
    """``x`` with two axes exchanged."""
    return x.with_shape(tuple(x.shape[i] for i in swap_permutation(axis1, axis2, x.ndim)))


@op(float8=True)
def reshape_like(x: Tensor, like_type: Tensor) -> Tensor:
    """The elements of ``x`` in row-major order, in the shape of ``like_type``. A view.

    TypeInferError if the number of elements differs.
    """
    known = x.is_static and like_type.is_static
    fits = not known or x.size == like_type.size
    expected = f"a shape of {x.size} elements" if known else None
    require(fits, "the number of elements differs", expected=expected, found=like_type)
    return x.with_shape(like_type.shape)


for _view in (reshape, batch_flatten, expand_dims, squeeze, reshape_like):
    _view.declare(view_of_first)


def _require_broadcast(narrow: Tensor, wide: Tensor) -> None:
    fits = shapes_compatible(broadcast_shapes(narrow.shape, wide.shape), wide.shape)
    expected = f"a shape that broadcasts to {wide}"
    require(fits, "one shape does not broadcast to the other", expected=expected, found=narrow)


@op(schema=reshape_like)
def broadcast_to_like(x: Tensor, like_type: Tensor) -> Tensor:
    """``x`` repeated along axes of extent 1, and new leading ones, to the shape of ``like_type``.

    The result has the dtype of x.
    """
    _require_broadcast(x, like_type)
    return x.with_shape(like_type.shape)


@op(schema=reshape_like)
def collapse_sum_like(x: Tensor, like_type: Tensor) -> Tensor:
    """``x`` summed over the axes along which ``like_type`` would be repeated to its shape.

    The adjoint of `broadcast_to_like`. The result has the shape of like_type and the dtype that
    `sum` gives. Half precision is added in float32.
    """
    _require_broadcast(like_type, x)
    return Tensor(like_type.shape, sum_dtype(x.dtype))


def collapsed_axes(shape: tuple[Dim, ...], target: tuple[Dim, ...]) -> tuple[int, ...]:
    """Return the axes over which a tensor of ``shape`` is summed to reach the shape ``target``."""
    lead = len(shape) - len(target)
    return tuple(i for i, d in enumerate(shape) if i < lead or (target[i - lead] == 1 and d != 1))


@op
def shape(x: Tensor) -> tuple[int, ...]:
    """The shape as a tuple of ints, known now. All extents must be static."""
    return x.static_shape


@op
def numel(x: Tensor) -> int:
    """The number of elements, an int. All extents must be static."""
    return x.size


@op(schema=numel)
def shape_as_tensor(x: Tensor) -> Tensor:
    """The shape as a vector: int64, one entry per axis, on the device of ``x``."""
    return Tensor((x.ndim,), "int64")


@op
def get_reduce_axis(x1: Scalar | Tensor, x2: Scalar | Tensor) -> tuple[int, ...]:
    """The axes over which to sum ``x1`` to get the shape of ``x2``, a tuple known now.

    With `get_kept_dims`, ``sum(x1, get_reduce_axis(x1, x2), get_kept_dims(x1, x2))`` has the shape
    of ``x2``; nothing is summed if the shapes are equal.
    """
    wide, narrow = shape_of(x1), shape_of(x2)
    require(broadcast_shapes(wide, narrow) == wide, "x2 does not broadcast to the shape of x1")
    return collapsed_axes(wide, narrow)


@op(schema=get_reduce_axis)
def get_kept_dims(x1: Scalar | Tensor, x2: Scalar | Tensor) -> tuple[int, ...]:
    """Whether each axis of `get_reduce_axis` stays with extent 1: the ``keepdims`` of `sum`."""
    lead = len(shape_of(x1)) - len(shape_of(x2))
    axes: tuple[int, ...] = get_reduce_axis.type_function(x1, x2)
    return tuple(int(a >= lead) for a in axes)
