"""Converters of operators that read and write elements by index."""

from __future__ import annotations

import sys

from meta import op
from meta.frontend.core import Unconvertible, constant_value
from meta.frontend.core.operators import REDUCTIONS, by_batch, reduce_at, wrap_negative_indices
from meta.frontend.relax.converters.movement import numbers
from meta.frontend.relax.registry import relax
from meta.op.core.check import broadcast_shapes
from meta.runtime.ndarray import array


@relax("strided_slice", op.strided_slice)
def strided_slice(x, axes, begin, end, strides=None, *, assume_inbound):
    """Bounds are clipped, so it does not matter whether they are inside."""
    del assume_inbound
    bounds = [numbers(v, "a bound of a slice") for v in (axes, begin, end)]
    steps = [1] * len(bounds[0]) if strides is None else numbers(strides, "a stride")
    by_axis = {a % x.ndim: (b, e, s) for a, b, e, s in zip(*bounds, steps, strict=True)}
    return sliced(x, by_axis)


@relax("dynamic_strided_slice", op.strided_slice, op.dynamic_strided_slice)
def dynamic_strided_slice(x, begin, end, strides):
    """The bounds are vectors, with an entry for every axis."""
    given = (begin, end, strides)
    if any(constant_value(v) is None for v in given):
        return op.dynamic_strided_slice(x, *given)
    bounds = [numbers(v, "a bound of a slice") for v in given]
    return sliced(x, dict(enumerate(zip(*bounds, strict=True))))


def sliced(x, by_axis):
    """Return a slice by (begin, end, stride) of some axes."""
    if not by_axis:
        return x
    last = max(by_axis) + 1
    cuts = [by_axis.get(a, (0, sys.maxsize, 1)) for a in range(last)]
    begin, end, strides = (tuple(map(_int64, v)) for v in zip(*cuts, strict=True))
    return op.strided_slice(x, begin, end, strides)


def _int64(value):
    return max(min(value, sys.maxsize), -sys.maxsize) if isinstance(value, int) else value


@relax("take", op.take)
def take(x, indices, *, axis, mode, call):
    """Importers count from the end with "fast", of which TVM asks that every index is in range."""
    if isinstance(indices, int):
        indices = array(indices, "int64", device=call.device)
    return op.take(x, indices, axis, _mode(mode))


@relax("grad.take_backward", op.take_dx)
def take_backward(dy, x, indices, *, axis, mode):
    return op.take_dx(x, dy, indices, axis, _mode(mode))


def _mode(mode):
    """Return what `take` calls a mode."""
    if mode == "nan":
        raise Unconvertible("NaN for an index out of range (mode='nan') is not supported")
    return mode if mode in ("clip", "wrap") else "raise"


@relax("gather_elements", op.take_along_axis)
def gather_elements(x, indices, *, axis):
    """Negative indices count from the end, as in ONNX."""
    return op.take_along_axis.plain(x, indices, axis)


@relax("gather_nd", op.gather_nd)
def gather_nd(x, indices, *, batch_dims, call):
    """The coordinates are along the last axis of the indices, and may be negative."""
    extents = x.shape[batch_dims : batch_dims + indices.shape[-1]]
    indices = _from_start(indices, array(extents, "int64", device=call.device))
    indices = _coordinates_first(indices)
    if batch_dims:
        indices = by_batch(indices, batch_dims, "the indices of gather_nd", call)
    return op.gather_nd(x, indices)


def _coordinates_first(indices):
    last = indices.ndim - 1
    return op.permute_dims(indices, (last, *range(last))) if last else indices


@relax("index_tensor", op.adv_index)
def index_tensor(x, indices):
    return op.adv_index((x, *indices))


@relax("index_put", op.scatter_nd)
def index_put(x, indices, values, *, accumulate):
    """``x[i0, i1, ...] = values``, or ``+=``."""
    rows = indices if isinstance(indices, tuple) else (indices,)
    rows = tuple(_from_start(r, x.shape[a]) for a, r in enumerate(rows))
    shape = broadcast_shapes(*(r.shape for r in rows))
    index = op.stack(tuple(op.broadcast_to(r, shape) for r in rows), 0)
    updates = op.broadcast_to(values, (*shape, *x.shape[len(rows) :]))
    return op.scatter_nd(x, index, updates, "add" if accumulate else "update")


def _from_start(index, extent):
    """Count negative indices from the start."""
    return wrap_negative_indices(op.astype(index, "int64"), extent)


@relax("scatter_elements", op.scatter, op.scatter_add, op.scatter_reduce)
def scatter_elements(x, indices, updates, *, axis, reduction):
    at = axis % x.ndim
    index = _from_start(indices, x.shape[at])
    if reduction in ("update", "add"):
        function = op.scatter_add if reduction == "add" else op.scatter
        return function(x, at, index, updates)
    return op.scatter_reduce(x, at, index, updates, _reduction(reduction))


def _reduction(name):
    if name not in REDUCTIONS:
        raise Unconvertible(f"the reduction {name!r} is not supported")
    return REDUCTIONS[name]


@relax("scatter_nd", op.scatter_nd, op.scatter_reduce)
def scatter_nd(x, indices, updates, *, reduction, call):
    """The coordinates are along the last axis of the indices, and may be negative."""
    extents = x.shape[: indices.shape[-1]]
    index = _from_start(indices, array(extents, "int64", device=call.device))
    index = _coordinates_first(index)
    if reduction in ("update", "add"):
        return op.scatter_nd(x, index, updates, reduction)
    return reduce_at(x, index, updates, _reduction(reduction), call)


@relax("slice_scatter", op.strided_set)
def slice_scatter(x, src, start, end, step, *, axis):
    at = axis % x.ndim
    begin = (*(0,) * at, start)
    ends = (*x.shape[:at], min(end, x.shape[at]))
    return op.strided_set(x, src, begin, ends, (*(1,) * at, step))
