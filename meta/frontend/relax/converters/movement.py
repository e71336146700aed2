"""Converters of operators that rearrange, repeat, convert or pad elements, that read and write them
by index, and of those on shapes, which are numbers while converting.
"""

from __future__ import annotations

import math
import sys

import numpy as np

from meta import op
from meta.frontend.core import Unconvertible, constant_value
from meta.frontend.core.arguments import required_ints
from meta.frontend.core.arithmetic import cast_number, cast_to
from meta.frontend.core.operators import (
    REDUCTIONS,
    by_batch,
    meshgrid,
    reduce_at,
    without_negative_padding,
    wrap_negative_indices,
)
from meta.frontend.relax.values import RuntimeShape, Shape, relax
from meta.op.core.check import broadcast_shapes
from meta.op.core.window import MODES, TORCH_MODES
from meta.runtime.ndarray import array

relax.same("collapse_sum_like", op.collapse_sum_like)
relax.same("flip", op.flip, "axis")
relax.same("nn.batch_flatten", op.batch_flatten)
relax.same("permute_dims", op.permute_dims, "axes")
relax.same("repeat", op.repeat, "repeats", "axis")
relax.same("reverse_sequence", op.reverse_sequence, "seq_axis", "batch_axis")
relax.same("stack", op.stack, "axis")
relax.same("tile", op.tile, repeats="reps")
relax("meshgrid", op.reshape, op.broadcast_to)(meshgrid)


def numbers(value, what):
    """Return the numbers in a shape, a tuple or a known vector; Unconvertible otherwise."""
    if isinstance(value, tuple | list):
        return list(value)
    return list(required_ints(value, what))


def _array_of(value, extents, call):
    """Return what is computed of extents as an array of int64."""
    if not all(isinstance(e, int) for e in extents):
        raise Unconvertible("an extent that is known by name only is computed with as an array")
    return array(np.array(value, dtype=np.int64), device=call.device)


@relax("shape_of")
def shape_of(x):
    return Shape(x.shape)


@relax("shape_to_tensor", op.astype)
def shape_to_tensor(shape, *, call):
    if isinstance(shape, RuntimeShape):
        return op.astype(shape.vector, "int64")
    return _array_of(shape, shape, call)


@relax("tensor_to_shape")
def tensor_to_shape(x):
    if constant_value(x) is None and isinstance(x.shape[0], int):
        return RuntimeShape(x)
    return Shape(numbers(x, "a shape"))


@relax("size")
def size(x, *, call):
    return _array_of(math.prod(x.shape), x.shape, call)


@relax("astype", "wrap_param", op.astype)
def astype(x, *, dtype):
    return cast_to(x, dtype)


def _to_shape(base, dynamic):
    @relax(base.name, base, dynamic)
    def converter(x, shape):
        is_known = not isinstance(shape, RuntimeShape)
        return base(x, tuple(shape)) if is_known else dynamic(x, shape.vector)


_to_shape(op.broadcast_to, op.dynamic_broadcast_to)
_to_shape(op.reshape, op.dynamic_reshape)


@relax("flatten", op.reshape)
def flatten(x):
    return op.reshape(x, (math.prod(x.shape),))


@relax("concat", op.concat)
def concat(tensors, *, axis):
    return op.concat(tuple(tensors), axis)


@relax("expand_dims", op.expand_dims)
def expand_dims(x, *, axis):
    """The axes are places in the result."""
    ndim = x.ndim + len(axis)
    for at in sorted(a % ndim for a in axis):
        x = op.expand_dims(x, at)
    return x


@relax("squeeze", op.squeeze)
def squeeze(x, *, axis):
    """A named axis of another extent than 1 stays."""
    if axis is None:
        return op.squeeze(x)
    return op.squeeze(x, tuple(a for a in axis if x.shape[a] == 1))


@relax("split", op.split)
def split(x, *, indices_or_sections, axis):
    """A number of parts that does not divide the axis gives a last part that is shorter."""
    extent = x.shape[axis]
    if isinstance(indices_or_sections, int) and isinstance(extent, int):
        step = -(-extent // indices_or_sections)
        if step * indices_or_sections != extent:
            ends = (min(i * step, extent) for i in range(1, indices_or_sections))
            indices_or_sections = tuple(ends)
    return tuple(op.split(x, indices_or_sections, axis))


@relax("collapse_sum_to", op.sum)
def collapse_sum_to(x, shape):
    target = tuple(numbers(shape, "the shape of a sum"))
    lead = x.ndim - len(target)
    axes = (*range(lead), *(lead + i for i, e in enumerate(target) if e != x.shape[lead + i]))
    return op.reshape(op.astype(op.sum(x, axes), x.dtype), target) if axes else x


@relax("nn.pixel_shuffle", op.reshape, op.depth_to_space)
def pixel_shuffle(x, *, upscale_factor):
    """[..., C * r * r, H, W] to [..., C, H * r, W * r] (Shi et al., arXiv:1609.05158)."""
    images = op.reshape(x, (math.prod(x.shape[:-3]), *x.shape[-3:]))
    y = op.depth_to_space(images, upscale_factor, "NCHW", "CRD")
    return op.reshape(y, (*x.shape[:-3], *y.shape[1:]))


PAD_MODES = {
    **{mode: mode for mode in MODES},
    **TORCH_MODES,
}


@relax("nn.pad", op.pad)
def pad(x, *, pad_width, pad_value, pad_mode):
    pairs = list(zip(pad_width[::2], pad_width[1::2], strict=True))
    return _padded(x, pairs, pad_value, pad_mode)


def _padded(x, pairs, value, mode):
    """Pad by (before, after) for each axis; negative numbers cut off."""
    x, pairs = without_negative_padding(x, pairs)
    if mode not in PAD_MODES:
        raise Unconvertible(f"the padding mode {mode!r} is not supported")
    return op.pad(x, pairs, PAD_MODES[mode], cast_number(value, x.dtype))


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


# Negative indices count from the end, as in ONNX.
relax.same("gather_elements", op.take_along_axis, "axis")


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
