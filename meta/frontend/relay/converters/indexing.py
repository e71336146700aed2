"""Converters of operators that read the elements which a tensor of indices names. Those that write
are in `scatter.py`.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from meta import op
from meta.frontend.core import CallSite, Unconvertible
from meta.frontend.core.arithmetic import cast_to
from meta.frontend.relay.arguments import as_integers, constant, known_ints, static_extent
from meta.frontend.relay.registry import relay
from meta.op.core.check import normalize_axis


@relay("take", op.take)
def take(
    data: Any,
    indices: Any,
    *,
    axis: int | None,
    batch_dims: int | None,
    mode: str,
    call: CallSite,
) -> Any:
    """Without an axis the data are flattened. The first ``batch_dims`` axes are common."""
    indices = as_integers(indices)
    batch = batch_dims or 0
    if batch < 0:
        batch += indices.ndim
    if batch == 0 or axis is None:
        return op.take(data, indices, axis, mode)
    return _taken_in_batches(data, indices, normalize_axis(axis, data.ndim), batch, mode, call)


def _taken_in_batches(
    data: Any, indices: Any, axis: int, batch: int, mode: str, call: CallSite
) -> Any:
    """Take from a table in which the batch axes and the axis of the indices are one."""
    if axis < batch:
        raise Unconvertible(f"take has axis {axis}, which is one of {batch} batch axes")
    extents = [static_extent(d, "the data of take with batch_dims") for d in data.shape]
    between, after = tuple(range(batch, axis)), tuple(range(axis + 1, data.ndim))
    batches, extent = prod(extents[:batch]), extents[axis]
    table = op.transpose(data, (*range(batch), axis, *between, *after))
    table = op.reshape(table, (batches * extent, *(extents[a] for a in (*between, *after))))
    inner = tuple(indices.shape[batch:])
    places = op.cast(op.reshape(indices, (batches, *inner)), "int64")
    places = op.mod(places, extent) if mode == "wrap" else op.clip(places, 0, extent - 1)
    first = constant(np.arange(batches) * extent, "int64", call)
    places = op.add(places, op.reshape(first, (batches, *(1,) * len(inner))))
    result = op.take(table, places, 0)
    result = op.reshape(result, (*extents[:batch], *inner, *result.shape[1 + len(inner) :]))
    start, count = batch + len(inner), len(between)
    order = (
        *range(batch),
        *range(start, start + count),
        *range(batch, start),
        *range(start + count, result.ndim),
    )
    return op.transpose(result, order) if count else result


@relay("gather", op.gather)
def gather(data: Any, indices: Any, *, axis: int | None) -> Any:
    """Along an axis."""
    return op.gather(data, axis or 0, indices)


@relay("gather_nd", op.gather_nd, ignore=("index_rank",))
def gather_nd(data: Any, indices: Any, *, batch_dims: int | None, call: CallSite) -> Any:
    """Coordinates are on the first axis of the indices; those of the batch axes are added."""
    batch = batch_dims or 0
    if not batch:
        return op.gather_nd(data, indices)
    rest = tuple(static_extent(d, "the indices of gather_nd") for d in indices.shape[1:])
    own = [np.broadcast_to(i, rest) for i in np.ogrid[tuple(slice(d) for d in rest)][:batch]]
    return op.gather_nd(data, op.concatenate((constant(own, indices.dtype, call), indices), 0))


@relay("adv_index", op.adv_index)
def adv_index(inputs: tuple[Any, ...]) -> Any:
    """A tuple of the data and an index for each of the leading axes."""
    return op.adv_index(tuple(inputs))


@relay("unravel_index", op.floor_divide, op.mod, op.stack)
def unravel_index(data: Any, shape: Any) -> Any:
    """The coordinates, on a new first axis, of places in a tensor of a shape."""
    extents = known_ints(shape)
    count = static_extent(shape.shape[0], "the shape") if shape.ndim else 1
    coordinates = []
    for axis in reversed(range(count)):
        if extents is None:
            extent = op.strided_slice(op.reshape(shape, (-1,)), (axis,), (axis + 1,))
            extent = cast_to(op.reshape(extent, ()), data.dtype)
        else:
            extent = extents[axis]
        # The first axis takes what is left, as the places are in range.
        coordinates.append(op.mod(data, extent) if axis else data)
        data = op.floor_divide(data, extent)
    return op.stack(tuple(reversed(coordinates)), 0)
