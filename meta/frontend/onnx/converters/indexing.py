"""Converters of operators that read and write at positions, and of searches for them."""

from __future__ import annotations

from math import prod

import numpy as np

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import (
    SLICE_END,
    constant,
    constant_ints,
    constant_number,
    extent_of,
    required_ints,
    static_extent,
    vector,
)
from meta.frontend.core.arithmetic import cast_to
from meta.frontend.core.operators import reduce_at, wrap_negative_indices
from meta.frontend.onnx.registry import onnx
from meta.frontend.onnx.shape_inference import as_tensor, shape_of
from meta.ir.dims import SymbolicDim
from meta.op.core.check import normalize_axis


def positions(indices, x, axis, *, ends=False):
    """Return indices as int64, each the position of an element along an axis of x, or with ``ends``
    that behind one, up to the extent: IndexOutOfRange for others, where the program runs.

    For operators that take any number, as lengths that are clipped, where ONNX does not: they are
    looked up in a table of those that there are.
    """
    if any(n == 0 for i, n in enumerate(x.shape) if i != axis):
        return cast_to(indices, "int64")  # of nothing: none is used
    sizes = tuple(-1 if i == axis else 1 for i in range(x.ndim))
    along = op.reshape(op.strided_slice(x, (0,) * x.ndim, sizes, None, "size"), (-1,))
    ones = op.ones_like(cast_to(op.equal(along, along), "int64"))  # of any dtype
    numbers = op.cumsum.plain(ones, 0, "int64", False)
    table = op.pad(numbers, (1, 0)) if ends else op.subtract(numbers, 1)
    return op.squeeze(op.embedding(indices, op.expand_dims(table, 1)), (-1,))


REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
"""Names of reductions, and what `scatter_reduce` calls them."""


onnx.same("Gather", op.take)
# Along the other axes there may be fewer indices than elements.
onnx.same("GatherElements", op.take_along_axis)


def _coordinates(indices):
    """The components along the last axis, one by one."""
    count = static_extent(indices.shape[-1], "the last axis of the indices")
    return [op.take(indices, constant_like(i, indices), indices.ndim - 1) for i in range(count)]


def constant_like(number, x):
    """A number of the dtype of x."""
    return op.full((), number, "int64")


@onnx("GatherND", op.adv_index)
def gather_nd(x, indices, *, batch_dims, call):
    """The last axis of the indices are coordinates behind the batch axes."""
    parts = _coordinates(indices)
    ndim = indices.ndim - 1
    batch = []
    for axis in range(batch_dims or 0):
        extent = static_extent(x.shape[axis], "a batch axis")
        shape = tuple(extent if i == axis else 1 for i in range(ndim))
        batch.append(constant(np.arange(extent).reshape(shape), indices.dtype, call))
    return op.adv_index((x, *batch, *parts))


def _reduction(name):
    """What `scatter_reduce` calls a reduction; None for none."""
    if name in (None, "none"):
        return None
    if name not in REDUCTIONS:
        raise Unconvertible(f"the reduction {name!r} is unknown")
    return REDUCTIONS[name]


def _scatter(x, indices, updates, axis, reduction):
    indices, how = wrap_negative_indices(indices, extent_of(x, axis)), _reduction(reduction)
    if how is None:
        return op.scatter(x, axis, indices, updates)
    return op.scatter_reduce(x, axis, indices, updates, how)


@onnx("ScatterElements", op.scatter, op.scatter_reduce)
def scatter_elements(x, indices, updates, *, axis, reduction):
    return _scatter(x, indices, updates, axis, reduction)


@onnx("Scatter", op.scatter)
def scatter(x, indices, updates, *, axis):
    return _scatter(x, indices, updates, axis, None)


@onnx("ScatterND", op.scatter, op.scatter_reduce)
def scatter_nd(x, indices, updates, *, reduction, call):
    """The last axis of the indices are coordinates of elements or slices."""
    depth = static_extent(indices.shape[-1], "the last axis of the indices")
    extents = [static_extent(d, "the tensor to be written to") for d in x.shape[:depth]]
    bounds = constant(extents, "int64", call)
    indices = wrap_negative_indices(cast_to(indices, "int64"), bounds)
    last = indices.ndim - 1
    return reduce_at(
        x, op.permute_dims(indices, (last, *range(last))), updates, _reduction(reduction), call
    )


@onnx("TensorScatter", op.scatter)
def tensor_scatter(cache, update, starts=None, *, axis, mode, call):
    """Write a row of a batch from a position of its own on, which ``mode`` may wrap around."""
    axis = normalize_axis(axis, cache.ndim)
    batch, count = cache.shape[0], static_extent(update.shape[axis], "the axis that is written")
    steps = constant(np.arange(count), "int64", call)
    if starts is None:
        starts = op.full((batch,), 0, "int64", str(call.device))
    places = op.add(op.reshape(starts, (batch, 1)), op.reshape(steps, (1, count)))
    if mode == "circular":
        places = op.remainder(places, static_extent(cache.shape[axis], "the cache"))
    shape = tuple(batch if i == 0 else count if i == axis else 1 for i in range(cache.ndim))
    places = op.broadcast_to(op.reshape(places, shape), update.shape)
    return op.scatter(cache, axis, places, update)


@onnx("Slice", op.strided_slice, op.dynamic_strided_slice)
def slice_(x, first=None, last=None, at=None, step=None, *, starts, ends, axes, call):
    """The bounds are attributes before opset 10."""
    if first is None:
        given, limits, places, steps = starts, ends, axes, None
    else:
        given, limits = shape_of(first), shape_of(last)
        places = None if at is None else required_ints(at, "axes")
        steps = None if step is None else constant_ints(step)
    unknown = given is None or limits is None or (step is not None and steps is None)
    count = (first.shape[0] if first is not None else 0) if unknown else len(given)
    places = [normalize_axis(a, x.ndim) for a in (range(count) if places is None else places)]
    if unknown:
        bounds = (as_tensor(b, call.device) for b in (first, last, step))
        return _dynamic_slice(x, *bounds, places, call)
    if any(isinstance(v, SymbolicDim) for v in (*given, *limits)):
        return _named_slice(x, (first, last, step), (given, limits, steps), places, call)
    begin, end, strides = [0] * x.ndim, [SLICE_END] * x.ndim, [1] * x.ndim
    for i, axis in enumerate(places):
        begin[axis], end[axis] = given[i], limits[i]
        strides[axis] = 1 if steps is None else steps[i]
    return op.strided_slice(x, tuple(begin), tuple(end), tuple(strides))


def _named_slice(x, bounds, numbers, places, call):
    """Bounds that are known by name; one that is beyond the axis is an error at run time."""
    given, limits, steps = numbers
    shape = list(x.shape)
    for i, axis in enumerate(places):
        plain = steps is None or steps[i] == 1
        if not plain or not isinstance(given[i], int) or given[i] < 0:
            shape = None
            break
        if given[i] == 0 and _reaches(limits[i], x.shape[axis]):
            continue
        if isinstance(limits[i], int) and limits[i] < 0:
            shape[axis] = shape[axis] + limits[i] - given[i]
        else:
            shape[axis] = limits[i] - given[i]
    if shape == list(x.shape):
        return x
    y = _dynamic_slice(x, *(as_tensor(b, call.device) for b in bounds), places, call)
    return y if shape is None else op.reshape(y, tuple(shape))


def _reaches(limit, extent):
    """Whether a bound is at the end of an axis, as far as that is known."""
    if isinstance(limit, int) and not isinstance(extent, int):
        return limit >= SLICE_END // 2
    return isinstance(extent, int | SymbolicDim) and limit == extent


def _dynamic_slice(x, first, last, step, places, call):
    """Bounds that are not known are vectors for all axes."""

    def all_axes(values, otherwise):
        if values is None:
            return constant([otherwise] * x.ndim, "int64", call)
        whole = [otherwise] * x.ndim
        for i, axis in enumerate(places):
            whole[axis] = op.strided_slice(values, (i,), (i + 1,))
        return vector(whole, call)

    bounds = all_axes(first, 0), all_axes(last, SLICE_END), all_axes(step, 1)
    return op.dynamic_strided_slice(x, *bounds)


@onnx("Compress", op.nonzero, op.take)
def compress(x, condition, *, axis):
    """What is behind the end of the condition is left out."""
    (places,) = op.nonzero(condition)
    if axis is None:
        x, axis = op.reshape(x, (-1,)), 0
    return op.take(x, places, axis)


@onnx("NonZero", op.argwhere, op.permute_dims)
def nonzero(x):
    return op.permute_dims(op.argwhere(x), (1, 0))


@onnx("OneHot", op.arange, op.dynamic_arange, op.where)
def one_hot(indices, depth, values, *, axis, call):
    """An index below 0 counts from the end of the depth; one beyond names no place."""
    count = constant_number(depth)
    if count is None:
        count = cast_to(op.reshape(depth, ()), "int64")
        bounds = constant(0, "int64", call), count, constant(1, "int64", call)
        places = op.dynamic_arange(*bounds, "int64")
    else:
        count = int(count)
        places = op.arange(0, count, 1, "int64", str(call.device))
    if "int" not in indices.dtype:
        indices = op.astype(indices, "int64")
    ndim = indices.ndim + 1
    axis = normalize_axis(axis, ndim)
    places = op.reshape(places, tuple(-1 if i == axis else 1 for i in range(ndim)))
    wanted = op.expand_dims(cast_to(indices, "int64"), axis)
    wanted = op.where(op.less(wanted, 0), op.add(wanted, count), wanted)
    pair = op.reshape(values, (2,))
    off, on = (op.reshape(op.strided_slice(pair, (i,), (i + 1,)), ()) for i in range(2))
    return op.where(op.equal(places, wanted), on, off)


@onnx("TopK", op.topk, op.dynamic_topk, op.embedding, ignore=("sorted",))
def top_k(x, count=None, *, axis, k, largest):
    """The number is an attribute in opset 1. What is not asked to be sorted is sorted too."""
    number = k if count is None else constant_number(count)
    largest = largest is None or bool(largest)
    if number is None:
        last = positions(op.subtract(op.reshape(count, (1,)), 1), x, normalize_axis(axis, x.ndim))
        return tuple(op.dynamic_topk(x, op.add(last, 1), axis, largest))
    return tuple(op.topk(x, int(number), axis, largest))


MAX_COLUMNS = 1024
"""Elements of a slice, by which slices are told apart one after another."""


@onnx("Unique", op.unique, op.scatter_reduce, op.take)
def unique(x, *, axis, sorted, call):
    """(values, where each occurs first, the place of every element among them, counts), of elements
    or of slices along an axis.
    """
    if axis is None:
        x, axis = op.reshape(x, (-1,)), 0
    axis = normalize_axis(axis, x.ndim)
    if x.shape[axis] == 0:
        none = constant(np.zeros(0), "int64", call)
        return x, none, none, none
    ranks = _ranks(x, axis, call)
    _, inverse, counts = op.unique(ranks, True, True)
    size = static_extent(ranks.shape[0], "the input")
    places = constant(np.arange(size), "int64", call)
    first = op.scatter_reduce(op.full_like(counts, size), 0, inverse, places, "amin")
    if not sorted:
        order = op.argsort(first)
        rank = op.scatter(op.zeros_like(order), 0, order, _numbers_like(order))
        counts, first = (op.take(v, order, 0) for v in (counts, first))
        inverse = op.take(rank, inverse, 0)
    return op.take(x, first, axis), first, inverse, counts


def _ranks(x, axis, call):
    """Return a number for each slice along an axis: equal ones have equal numbers, which are in the
    order of the slices, element by element.
    """
    extents = [static_extent(d, "the input") for d in x.shape]
    columns = prod(e for i, e in enumerate(extents) if i != axis)
    if columns > MAX_COLUMNS:
        raise Unconvertible(f"slices of more than {MAX_COLUMNS} elements are not told apart")
    if columns == 0:
        return constant(np.zeros(extents[axis]), "int64", call)
    order = (axis, *(i for i in range(x.ndim) if i != axis))
    rows = op.reshape(op.permute_dims(x, order), (extents[axis], columns))
    ranks = None
    for column in op.split(rows, columns, 1) if columns > 1 else (rows,):
        own = op.reshape(column, (extents[axis],))
        if columns == 1:
            return own
        _, own = op.unique(own, True)
        if ranks is not None:
            _, own = op.unique(op.add(op.multiply(ranks, extents[axis]), own), True)
        ranks = own
    return ranks


def _numbers_like(order):
    """0, 1, 2, ... as many as there are elements."""
    return op.subtract(op.cumsum.plain(op.ones_like(order), 0, "int64", False), 1)
