"""Converters of operators that write to the places which a tensor of indices names.

A negative index counts from the end. Where several indices are equal, "update" writes one of them.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from meta import op
from meta.base.dtype import is_float
from meta.frontend.core import CallSite, Unconvertible
from meta.frontend.core.arithmetic import cast_to
from meta.frontend.relay.arguments import constant, extent_of, static_extent, vector
from meta.frontend.relay.registry import relay
from meta.op.core.check import normalize_axis

_REDUCTIONS = {"mul": "prod", "min": "amin", "max": "amax"}


def _from_start(indices: Any, extent: Any) -> Any:
    """Return indices of which the negative ones are counted from the end."""
    extent = extent if isinstance(extent, int) else cast_to(extent, indices.dtype)
    return op.where(op.less(indices, 0), op.add(indices, extent), indices)


def _reduction(name: str) -> str:
    if name not in _REDUCTIONS:
        raise Unconvertible(
            f"the reduction {name!r} is unknown", hint="update, add, mean, mul, min, max"
        )
    return _REDUCTIONS[name]


@relay("scatter_elements", op.scatter, op.scatter_add, op.scatter_reduce)
def scatter_elements(
    data: Any, indices: Any, updates: Any, *, axis: int | None, reduction: str
) -> Any:
    """Along an axis."""
    at = normalize_axis(axis or 0, data.ndim)
    indices = _from_start(indices, extent_of(data, at))
    if reduction == "update":
        return op.scatter(data, indices, updates, at)
    if reduction == "add":
        return op.scatter_add(data, indices, updates, at)
    if reduction == "mean":
        return _averaged(data, indices, updates, at)
    return op.scatter_reduce(data, indices, updates, at, _reduction(reduction))


def _averaged(data: Any, indices: Any, updates: Any, axis: int) -> Any:
    """Return what TVM calls the mean: every update in turn is averaged with what is there.

    So an update counts half, and half of that for each one to the same place behind it.
    """
    if not is_float(data.dtype):
        raise Unconvertible("the mean of integers depends on how each step is rounded")
    count = static_extent(indices.shape[axis], "the indices")
    last = indices.ndim
    to_back = (*(a for a in range(last) if a != axis), axis)
    back = tuple(to_back.index(a) for a in range(last))
    rows = op.transpose(indices, to_back)
    same = op.equal(op.expand_dims(rows, last), op.expand_dims(rows, last - 1))
    later = op.cast(op.triu(op.cast(same, "int32"), 1), data.dtype)
    weights = op.exp2(op.negative(op.add(op.sum(later, -1), 1.0)))
    weights = op.transpose(weights, back) if count else op.zeros_like(updates)
    ones = op.ones_like(weights)
    written = op.scatter_add(op.zeros_like(data), indices, ones, axis)
    kept = op.multiply(data, op.exp2(op.negative(written)))
    return op.scatter_add(kept, indices, op.multiply(updates, weights), axis)


@relay("scatter", op.scatter)
def scatter(data: Any, indices: Any, updates: Any, *, axis: int | None) -> Any:
    """Up to TVM 0.11."""
    return scatter_elements(data, indices, updates, axis=axis, reduction="update")


@relay("scatter_add", op.scatter_add)
def scatter_add(data: Any, indices: Any, updates: Any, *, axis: int | None) -> Any:
    """Up to TVM 0.11."""
    return scatter_elements(data, indices, updates, axis=axis, reduction="add")


@relay("scatter_nd", op.scatter_nd, op.scatter_reduce)
def scatter_nd(data: Any, indices: Any, updates: Any, *, mode: str, call: CallSite) -> Any:
    """The coordinates are on the first axis of the indices."""
    depth = static_extent(indices.shape[0], "the first axis of the indices")
    shape = (depth, *(1,) * (indices.ndim - 1))
    own = vector([extent_of(data, i) for i in range(depth)], call)
    indices = _from_start(indices, op.reshape(own, shape))
    if mode in ("update", "add"):
        return op.scatter_nd(data, indices, updates, mode)
    extents = [static_extent(d, "the tensor to be written to") for d in data.shape]
    # The named axes become one, the others another, along which every index is repeated.
    strides = [prod(extents[i + 1 : depth]) for i in range(depth)]
    factors = constant(np.reshape(strides, shape), "int64", call)
    places = op.sum(op.multiply(op.cast(indices, "int64"), factors), 0)
    rows, columns = prod(extents[:depth]), prod(extents[depth:])
    count = prod(static_extent(d, "the indices") for d in places.shape)
    places = op.broadcast_to(op.reshape(places, (count, 1)), (count, columns))
    written = op.scatter_reduce(
        op.reshape(data, (rows, columns)),
        places,
        op.reshape(updates, (count, columns)),
        0,
        _reduction(mode),
    )
    return op.reshape(written, tuple(extents))


@relay("invert_permutation", op.scatter)
def invert_permutation(data: Any, *, call: CallSite) -> Any:
    """y[data[i]] = i."""
    count = static_extent(data.shape[0], "the permutation")
    return op.scatter(op.zeros_like(data), data, constant(np.arange(count), data.dtype, call), 0)
