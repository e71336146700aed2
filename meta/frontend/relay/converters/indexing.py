"""Converters of operators that read or write the elements which a tensor of indices names, and of
those that cut tensors: `split`, slices, windows.

A negative index counts from the end. Where several indices are equal, "update" writes one of them.
"""

from __future__ import annotations

from itertools import zip_longest
from math import prod
from typing import Any

import numpy as np

from meta import op
from meta.base.dtype import is_float
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import (
    SLICE_END,
    as_integers,
    constant,
    constant_ints,
    extent_of,
    static_extent,
    vector,
)
from meta.frontend.core.arithmetic import cast_to
from meta.frontend.core.operators import REDUCTIONS, by_batch, reduce_at, wrap_negative_indices
from meta.frontend.relay.registry import relay
from meta.op.core.check import normalize_axis


@relay("take", op.take)
def take(data, indices, *, axis, batch_dims, mode, call):
    """Without an axis the data are flattened. The first ``batch_dims`` axes are common."""
    indices = as_integers(indices)
    batch = batch_dims or 0
    if batch < 0:
        batch += indices.ndim
    if batch == 0 or axis is None:
        return op.take(data, indices, axis, mode)
    return _batched_take(data, indices, normalize_axis(axis, data.ndim), batch, mode, call)


def _batched_take(data, indices, axis, batch, mode, call):
    """Take from a table in which the batch axes and the axis of the indices are one."""
    if axis < batch:
        raise Unconvertible(f"take has axis {axis}, which is one of {batch} batch axes")
    extents = [static_extent(d, "the data of take with batch_dims") for d in data.shape]
    between, after = tuple(range(batch, axis)), tuple(range(axis + 1, data.ndim))
    batches, extent = prod(extents[:batch]), extents[axis]
    table = op.permute_dims(data, (*range(batch), axis, *between, *after))
    table = op.reshape(table, (batches * extent, *(extents[a] for a in (*between, *after))))
    inner = tuple(indices.shape[batch:])
    places = op.astype(op.reshape(indices, (batches, *inner)), "int64")
    places = op.remainder(places, extent) if mode == "wrap" else op.clip(places, 0, extent - 1)
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
    return op.permute_dims(result, order) if count else result


relay.same("gather", op.take_along_axis, otherwise={"axis": 0})


@relay("gather_nd", op.gather_nd, ignore=("index_rank",))
def gather_nd(data, indices, *, batch_dims, call):
    """Coordinates are on the first axis of the indices; those of the batch axes are added."""
    batch = batch_dims or 0
    if not batch:
        return op.gather_nd(data, indices)
    return op.gather_nd(data, by_batch(indices, batch, "the indices of gather_nd", call))


@relay("unravel_index", op.floor_divide, op.remainder, op.stack)
def unravel_index(data, shape):
    """The coordinates, on a new first axis, of places in a tensor of a shape."""
    extents = constant_ints(shape)
    count = static_extent(shape.shape[0], "the shape") if shape.ndim else 1
    coordinates = []
    for axis in reversed(range(count)):
        if extents is None:
            extent = op.strided_slice(op.reshape(shape, (-1,)), (axis,), (axis + 1,))
            extent = cast_to(op.reshape(extent, ()), data.dtype)
        else:
            extent = extents[axis]
        # The first axis takes what is left, as the places are in range.
        coordinates.append(op.remainder(data, extent) if axis else data)
        data = op.floor_divide(data, extent)
    return op.stack(tuple(reversed(coordinates)), 0)


def _reduction(name):
    if name not in REDUCTIONS:
        raise Unconvertible(
            f"the reduction {name!r} is unknown", hint="update, add, mean, mul, min, max"
        )
    return REDUCTIONS[name]


@relay("scatter_elements", op.scatter, op.scatter_add, op.scatter_reduce)
def scatter_elements(data, indices, updates, *, axis, reduction):
    at = normalize_axis(axis or 0, data.ndim)
    indices = wrap_negative_indices(indices, extent_of(data, at))
    if reduction == "update":
        return op.scatter(data, at, indices, updates)
    if reduction == "add":
        return op.scatter_add(data, at, indices, updates)
    if reduction == "mean":
        return _averaged(data, indices, updates, at)
    return op.scatter_reduce(data, at, indices, updates, _reduction(reduction))


def _averaged(data, indices, updates, axis):
    """Return what TVM calls the mean: every update in turn is averaged with what is there.

    So an update counts half, and half of that for each one to the same place behind it.
    """
    if not is_float(data.dtype):
        raise Unconvertible("the mean of integers depends on how each step is rounded")
    count = static_extent(indices.shape[axis], "the indices")
    last = indices.ndim
    to_back = (*(a for a in range(last) if a != axis), axis)
    back = tuple(to_back.index(a) for a in range(last))
    rows = op.permute_dims(indices, to_back)
    same = op.equal(op.expand_dims(rows, last), op.expand_dims(rows, last - 1))
    later = op.astype(op.triu(op.astype(same, "int32"), 1), data.dtype)
    weights = op.exp2(op.negative(op.add(op.sum(later, -1), 1.0)))
    weights = op.permute_dims(weights, back) if count else op.zeros_like(updates)
    ones = op.ones_like(weights)
    written = op.scatter_add(op.zeros_like(data), axis, indices, ones)
    kept = op.multiply(data, op.exp2(op.negative(written)))
    return op.scatter_add(kept, axis, indices, op.multiply(updates, weights))


def _scatter(base, reduction):
    """Up to TVM 0.11."""

    @relay(base.name, base)
    def converter(data, indices, updates, *, axis):
        return scatter_elements(data, indices, updates, axis=axis, reduction=reduction)


_scatter(op.scatter, "update")
_scatter(op.scatter_add, "add")


@relay("scatter_nd", op.scatter_nd, op.scatter_reduce)
def scatter_nd(data, indices, updates, *, mode, call):
    """The coordinates are on the first axis of the indices."""
    depth = static_extent(indices.shape[0], "the first axis of the indices")
    shape = (depth, *(1,) * (indices.ndim - 1))
    own = vector([extent_of(data, i) for i in range(depth)], call)
    indices = wrap_negative_indices(indices, op.reshape(own, shape))
    if mode in ("update", "add"):
        return op.scatter_nd(data, indices, updates, mode)
    return reduce_at(data, indices, updates, _reduction(mode), call)


@relay("invert_permutation", op.scatter)
def invert_permutation(data, *, call):
    """y[data[i]] = i."""
    count = static_extent(data.shape[0], "the permutation")
    return op.scatter(op.zeros_like(data), 0, data, constant(np.arange(count), data.dtype, call))


MAX_SECTIONS = 1 << 14
"""`split` makes no more: an empty axis has any number of equal parts."""


@relay("split", op.split)
def split(data, *, indices_or_sections, axis):
    """Into equal parts, or before indices."""
    if not isinstance(indices_or_sections, int | tuple):
        raise Unconvertible(f"indices_or_sections is {indices_or_sections!r}")
    if isinstance(indices_or_sections, int) and indices_or_sections > MAX_SECTIONS:
        raise Unconvertible(f"{indices_or_sections} parts are more than {MAX_SECTIONS}")
    return op.split(data, indices_or_sections, axis)


def spread_over_axes(ndim, axes, values, default):
    """Return one value for each of the leading axes: those given at ``axes``, else the default."""
    at = {normalize_axis(a, ndim): v for a, v in zip(axes, values, strict=True)}
    return tuple(at.get(i, default) for i in range(max(at, default=-1) + 1))


def slice_bounds(ndim, begin, end, strides, axes, mode):
    """Return begin, end and strides of the leading axes, filled in; a "size" is a count."""
    count = max(len(begin), len(end), 0 if axes is None else len(axes))
    if len(strides) == 1:
        strides = strides * count
    places = tuple(range(count)) if axes is None else axes
    if len(places) != count or count > ndim:
        raise Unconvertible(f"begin={begin}, end={end}, axes={axes} do not fit {ndim} axes")

    rest = -1 if mode == "size" else SLICE_END
    bounds = []
    for _, b, e, s in zip_longest(range(count), begin, end, strides[:count]):
        step = 1 if s is None or mode == "size" else s
        first = b if b is not None else 0 if step > 0 else SLICE_END
        last = e if e is not None else rest if step > 0 else -SLICE_END
        bounds.append((first, last, step))
    columns = zip(*bounds, strict=True) if bounds else ((), (), ())
    return tuple(
        spread_over_axes(ndim, places, column, default)
        for column, default in zip(columns, (0, rest, 1), strict=True)
    )


@relay("strided_slice", op.strided_slice)
def strided_slice(data, *, begin, end, strides, axes, slice_mode):
    """Bounds as Python's slices have them; an entry that is missing keeps its axis."""
    bounds = slice_bounds(data.ndim, begin or (), end or (), strides or (), axes, slice_mode)
    return op.strided_slice(data, *bounds, slice_mode) if bounds[0] else data


@relay("slice_like", op.strided_slice, op.dynamic_strided_slice)
def slice_like(data, shape_like, *, axes, call):
    """The beginning of each axis, as long as that of the other tensor."""
    places = axes or tuple(range(min(data.ndim, shape_like.ndim)))
    lengths = tuple(extent_of(shape_like, normalize_axis(a, shape_like.ndim)) for a in places)
    ends = spread_over_axes(data.ndim, places, lengths, SLICE_END)
    begins = (0,) * len(ends)
    if all(isinstance(n, int) for n in lengths):
        return op.strided_slice(data, begins, ends) if ends else data
    strides = constant([1] * len(ends), "int64", call)
    return op.dynamic_strided_slice(
        data, constant(begins, "int64", call), vector(ends, call), strides
    )


@relay("strided_set", op.strided_set, op.where)
def strided_set(data, v, begin, end, strides=None, *, call):
    """The bounds are tensors. The extents of ``v`` tell where a slice ends."""
    first, last = constant_ints(begin), constant_ints(end)
    steps = (1,) if strides is None else constant_ints(strides)
    if first is not None and last is not None and steps is not None:
        bounds = slice_bounds(data.ndim, first, last, steps or (1,), None, "end")
        return op.strided_set(data, v, *bounds)
    if steps is None:
        raise Unconvertible("the strides of strided_set are not known while converting")
    return _set_anywhere(data, v, begin, steps, call)


def _set_anywhere(data, v, begin, steps, call):
    """Write ``v`` at a place that only the run time knows, by looking it up for each element."""
    count = static_extent(begin.shape[0], "begin")
    steps = steps * count if len(steps) == 1 else steps or (1,) * count
    written: Any = None
    for axis in range(data.ndim):
        extent = static_extent(data.shape[axis], "the tensor to be written to")
        length = static_extent(v.shape[axis], "the tensor to be written")
        if axis >= count:
            continue
        start = op.astype(op.strided_slice(begin, (axis,), (axis + 1,)), "int64")
        start = op.where(op.less(start, 0), op.add(start, extent), start)
        places = constant(np.arange(extent), "int64", call)
        step = steps[axis] if axis < len(steps) else 1
        offset = op.subtract(places, start) if step > 0 else op.subtract(start, places)
        order = op.floor_divide(offset, abs(step))
        inside = op.logical_and(
            op.logical_and(op.greater_equal(offset, 0), op.less(order, length)),
            op.equal(op.remainder(offset, abs(step)), 0),
        )
        v = op.take(v, order, axis, "clip")
        inside = op.reshape(inside, (-1, *(1,) * (data.ndim - 1 - axis)))
        written = inside if written is None else op.logical_and(written, inside)
    return v if written is None else op.where(written, v, data)


@relay("sliding_window", op.take, op.permute_dims)
def sliding_window(data, *, axis, window_shape, strides, call):
    """The windows along the axes from ``axis`` on; inside of them are the last axes."""
    first, count = normalize_axis(axis, data.ndim), len(window_shape)
    if first + count != data.ndim or len(strides) != count:
        raise Unconvertible(
            f"a window of {list(window_shape)} with strides {list(strides)} from axis {axis} on "
            f"does not fit {data.ndim} axes"
        )
    # Every axis becomes two: which window, and where in it.
    for i, (size, step) in enumerate(zip(window_shape, strides, strict=True)):
        at = first + 2 * i
        extent = static_extent(data.shape[at], f"axis {first + i}")
        starts = np.arange(0, max(extent - size, -1) + 1, step)
        places = constant(starts[:, None] + np.arange(size), "int64", call)
        data = op.take(data, places, at)
    order = (*range(first), *range(first, data.ndim, 2), *range(first + 1, data.ndim, 2))
    return op.permute_dims(data, order)
