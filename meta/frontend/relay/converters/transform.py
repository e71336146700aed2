"""Converters of operators that rearrange, repeat and join whole tensors."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.frontend.core import CallSite, Unconvertible
from meta.frontend.core.arithmetic import cast_to
from meta.frontend.relay.arguments import (
    constant,
    extent_of,
    ints,
    is_static,
    known_ints,
    vector,
)
from meta.frontend.relay.layout import change_layout
from meta.frontend.relay.registry import relay
from meta.frontend.relay.reshape import resolved_shape
from meta.frontend.relay.tuning_layout import change_tuning_layout
from meta.ir.dims import UnknownDim


@relay("reshape", op.reshape, op.dynamic_reshape)
def reshape(
    data: Any,
    *,
    newshape: tuple[int, ...] | None,
    allowzero: bool | None,
    reverse: bool | None,
    call: CallSite,
) -> Any:
    """By shape codes; ``reverse`` (TVM 0.6) matches them from the last axis."""
    codes = ints(newshape)
    if min(codes, default=0) >= -1 and not allowzero:
        return op.reshape(data, codes, bool(reverse))
    options = {"allowzero": bool(allowzero), "reverse": bool(reverse)}
    shape = resolved_shape(data.shape, codes, **options)
    if sum(isinstance(d, int) and d == -1 for d in shape) <= 1:
        return op.reshape(data, shape)
    if all(not isinstance(d, UnknownDim) for d in data.shape):
        raise Unconvertible(f"reshape by {list(codes)}: only one extent can be inferred")
    extents = [extent_of(data, i) for i in range(data.ndim)]
    shape = resolved_shape(extents, codes, **options)
    return op.dynamic_reshape(data, vector(shape, call), True)


@relay("contrib_reverse_reshape", "_contrib_reverse_reshape", op.reshape, ignore=("reverse",))
def reverse_reshape(
    data: Any, *, newshape: tuple[int, ...] | None, allowzero: bool | None, call: CallSite
) -> Any:
    """By shape codes that are matched from the last axis."""
    return reshape(data, newshape=newshape, allowzero=allowzero, reverse=True, call=call)


@relay("reshape_like", op.reshape, op.reshape_like)
def reshape_like(
    data: Any,
    shape_like: Any,
    *,
    lhs_begin: int | None,
    lhs_end: int | None,
    rhs_begin: int | None,
    rhs_end: int | None,
) -> Any:
    """Axes [lhs_begin, lhs_end) of the data get the extents [rhs_begin, rhs_end) of the other."""
    if not (lhs_begin or rhs_begin) and lhs_end is None and rhs_end is None:
        return op.reshape_like(data, shape_like)
    left = slice(lhs_begin or 0, lhs_end).indices(data.ndim)
    right = slice(rhs_begin or 0, rhs_end).indices(shape_like.ndim)
    kept = shape_like.shape[right[0] : right[1]]
    return op.reshape(data, (*data.shape[: left[0]], *kept, *data.shape[left[1] :]))


@relay("transpose", op.transpose)
def transpose(data: Any, *, axes: tuple[int, ...] | None) -> Any:
    """Without axes their order is reversed."""
    return op.transpose(data, ints(axes) or None)


@relay("squeeze", op.squeeze)
def squeeze(data: Any, *, axis: tuple[int, ...] | None) -> Any:
    """Without axes all of extent 1 go."""
    return op.squeeze(data, None if axis is None else ints(axis))


@relay("expand_dims", op.expand_dims)
def expand_dims(data: Any, *, axis: int, num_newaxis: int) -> Any:
    """New axes before ``axis``, which counts from behind the last one if it is negative."""
    return op.expand_dims(data, axis, num_newaxis)


@relay("broadcast_to", op.broadcast_to, ignore=("dtype",))
def broadcast_to(data: Any, *, shape: tuple[int, ...] | None) -> Any:
    """To a shape."""
    return op.broadcast_to(data, ints(shape))


relay.same("broadcast_to_like", op.broadcast_to_like)


@relay("collapse_sum_like", op.collapse_sum_like)
def collapse_sum_like(data: Any, collapse_type: Any) -> Any:
    """Summed over the axes along which the other would be repeated, in the dtype of the data."""
    return cast_to(op.collapse_sum_like(data, collapse_type), data.dtype)


@relay("collapse_sum_to", op.sum, op.reshape, ignore=("shape", "dtype"))
def collapse_sum_to(data: Any, shape: Any) -> Any:
    """Summed to a shape that broadcasts to that of the data, in the dtype of the data."""
    extents = known_ints(shape)
    if extents is None:
        raise Unconvertible("the shape to sum to is not known while converting")
    lead = data.ndim - len(extents)
    axes = tuple(
        a
        for a, d in enumerate(data.shape)
        if a < lead or (extents[a - lead] == 1 and not (isinstance(d, int) and d == 1))
    )
    summed = cast_to(op.sum(data, axes, True), data.dtype) if axes else data
    return op.reshape(summed, extents)


@relay("repeat", op.repeat)
def repeat(data: Any, *, repeats: int, axis: int | None) -> Any:
    """Every element several times; without an axis the data are flattened."""
    return op.repeat(data, repeats, axis)


@relay("tile", op.tile)
def tile(data: Any, *, reps: tuple[int, ...]) -> Any:
    """The whole several times."""
    return op.tile(data, ints(reps))


@relay("reverse", op.reverse)
def reverse(data: Any, *, axis: int | None) -> Any:
    """Along one axis, the first if none is named."""
    return op.reverse(data, axis or 0)


@relay("concatenate", op.concatenate)
def concatenate(data: tuple[Any, ...], *, axis: int) -> Any:
    """A tuple along an axis."""
    return op.concatenate(tuple(data), axis)


@relay("stack", op.stack)
def stack(data: tuple[Any, ...], *, axis: int | None) -> Any:
    """A tuple along a new axis."""
    return op.stack(tuple(data), axis or 0)


@relay("meshgrid", op.mesh_grid)
def meshgrid(data: tuple[Any, ...], *, indexing: str) -> Any:
    """The indexing "xy" has the axes of the first two vectors exchanged."""
    if indexing == "ij" or len(data) < 2:
        return op.mesh_grid(tuple(data))
    if indexing != "xy":
        raise Unconvertible(f"the indexing {indexing!r} is unknown", hint='"ij" or "xy"')
    first, second, *rest = data
    second, first, *rest = op.mesh_grid((second, first, *rest))
    return (first, second, *rest)


@relay("einsum", op.einsum)
def einsum(data: tuple[Any, ...], *, equation: str) -> Any:
    """A sum of products."""
    return op.einsum(tuple(data), equation.replace(" ", ""))


@relay("layout_transform", op.reshape, op.transpose, op.pad)
def layout_transform(data: Any, *, src_layout: str, dst_layout: str) -> Any:
    """From one layout to another."""
    return change_layout(data, src_layout, dst_layout)


@relay("auto_scheduler_layout_transform", op.reshape, op.transpose)
def auto_scheduler_layout_transform(data: Any, *, src_layout: str, dst_layout: str) -> Any:
    """From one layout of the auto-scheduler to another."""
    return change_tuning_layout(data, src_layout, dst_layout)


relay.refuse(
    "meta_schedule_layout_transform",
    why="its index map is a tensor expression that a tuner made; save the model before tuning",
)


@relay("shape_of", "vm.shape_of", op.shape_as_tensor)
def shape_of(data: Any, *, dtype: str, call: CallSite) -> Any:
    """The extents as a vector, known while converting if they are."""
    stated = dtype or ("int64" if call.name == "vm.shape_of" else "int32")
    if is_static(data.shape):
        return constant(data.shape, stated, call)
    return cast_to(op.shape_as_tensor(data), stated)


@relay("ndarray_size", "contrib.ndarray_size", op.shape_as_tensor, op.prod)
def ndarray_size(data: Any, *, dtype: str, call: CallSite) -> Any:
    """The number of elements, as a scalar."""
    stated = dtype or "int32"
    if is_static(data.shape):
        return constant(data.size, stated, call)
    return cast_to(op.prod(op.shape_as_tensor(data)), stated)
