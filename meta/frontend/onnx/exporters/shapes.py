"""Exporters of changes of shape, of what joins, cuts, repeats and rearranges, and of new arrays."""

from __future__ import annotations

from math import prod

import numpy as np
import torch

from meta import op
from meta.base.dtype import TO_TORCH
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import SLICE_END, is_static
from meta.frontend.onnx.export.graph import tensor_proto
from meta.frontend.onnx.export.registry import cast, exports, forms
from meta.ir import TensorType
from meta.op.core.check import normalize_axes, normalize_axis, permutation
from meta.op.core.slicing import slice_ranges
from meta.op.core.window import pad_pairs
from meta.op.shapes import collapsed_axes, squeezed_axes

LITTLE = 256
"""Elements of an array that is written out, instead of made by a node."""


def ints(g, *numbers):
    """Return numbers as a vector."""
    return g.constant(list(numbers), "int64")


def vector(count):
    """Return the type of a vector of integers."""
    return TensorType((count,), "int64")


def shape_of(g, x):
    """Return the extents of a value as a vector."""
    return ints(g, *x.shape) if is_static(x.shape) else g.node("Shape", x, type=vector(x.ndim))


def static(x, what):
    """Return the shape of a value; Unconvertible if it has not numbers only."""
    if not is_static(x.shape):
        hint = "write it for arguments of one shape"
        raise Unconvertible(f"{what} of a shape that is not known, {list(x.shape)}", hint)
    return x.shape


@exports(op.reshape, op.batch_flatten)
def reshape(g, x, *options):
    """An extent that is not a number is the one that is left, where there is one of these."""
    shape, kept = g.result.shape, options[1] if len(options) > 1 else ()
    named = [i for i, d in enumerate(shape) if not isinstance(d, int)]
    if len(named) == 1 and 0 not in shape:
        shape = [-1 if i in named else d for i, d in enumerate(shape)]
    if not kept or is_static(shape):
        sizes = g.extents(shape)
    else:
        own = shape_of(g, x)
        sizes = op.concat(tuple(op.strided_slice(own, (i,), (i + 1,)) if i in kept
                                else g.extents((d,)) for i, d in enumerate(shape)), 0)  # fmt: skip
    return g.node("Reshape", x, sizes, allowzero=1 if 0 in shape else None)


def _expand_dims(g, x, axis, count):
    first = normalize_axis(axis, x.ndim + 1)
    return g.node("Unsqueeze", x, ints(g, *range(first, first + count)))


def _squeeze(g, x, axis):
    axes = squeezed_axes(x.type, axis)
    return g.node("Squeeze", x, ints(g, *axes)) if axes else x


def _swapaxes(_, x, a, b):
    order = list(range(x.ndim))
    order[a], order[b] = order[b], order[a]
    return op.permute_dims(x, tuple(order))


def filled(g, shape, value, dtype, sizes=None):
    """Return an array of one number; ``sizes``: its extents, where they are computed."""
    if is_static(shape) and prod(shape) <= LITTLE:
        return g.constant(torch.full(shape, value, dtype=TO_TORCH[dtype]))
    tensor = tensor_proto("", torch.tensor([value], dtype=TO_TORCH[dtype]))
    sizes = g.extents(shape) if sizes is None else sizes
    return g.node("ConstantOfShape", sizes, type=TensorType(tuple(shape), dtype), value=tensor)


def _filled(value=None):
    """An array of a number, which is the argument after the shape if none is given here."""
    return lambda g, _, number, *__: filled(
        g, g.result.shape, number if value is None else value, g.result.dtype)  # fmt: skip


def _filled_like(value=None):
    return lambda g, x, number, *_: filled(
        g, x.shape, number if value is None else value, g.result.dtype, shape_of(g, x))  # fmt: skip


def positions_along(g, count, extent):
    """Return 0, 1, ... up to a number, of an int or a scalar: a vector of this extent."""
    return g.node("Range", 0, count, 1, type=vector(extent))


def _arange(g, start, stop, step, dtype, device):
    start, result = (0, start)[stop is not None], g.result
    wide = "float64" if "float" in result.dtype else "int64"
    places = cast(positions_along(g, *result.shape * 2), wide)
    return cast(g.constant(start, wide) + places * g.constant(step, wide), result.dtype)


def hot(g, indices, count, on, off, axis):
    """Return ``on`` where a place along a new axis, from 0 to ``count``, is the index."""
    at = normalize_axis(axis, indices.ndim + 1)
    places = positions_along(g, count, g.result.shape[at])
    places = op.reshape(places, tuple(-1 if i == at else 1 for i in range(indices.ndim + 1)))
    chosen = op.equal(op.expand_dims(cast(indices, "int64"), at), places)
    return op.where(chosen, *(cast(v, g.result.dtype) for v in (on, off)))


def _sliced(g, x, begin, end, axes, steps):
    return g.node("Slice", x, *(ints(g, *v) for v in (begin, end, axes, steps))) if axes else x


def _flip(g, x, axis):
    axes = normalize_axes(axis, x.ndim)
    return _sliced(g, x, [-1] * len(axes), [-SLICE_END] * len(axes), axes, [-1] * len(axes))


@exports(op.strided_slice)
def strided_slice(g, x, begin, end, strides, mode):
    begins, ends = ((v,) if isinstance(v, int) else v for v in (begin, end))
    steps = (strides,) if isinstance(strides, int) else strides or (1,)
    rows = []
    for i, found in enumerate(slice_ranges(x.shape, begin, end, strides, mode)):
        start, stop, step = begins[i], ends[i], steps[i % len(steps)]
        if found is not None:
            start, stop = found.start, found.stop if found.stop >= 0 else -SLICE_END
            stop = max(stop, start) if step > 0 else stop
        elif mode == "size":
            stop = SLICE_END if stop < 0 or start < 0 <= start + stop else start + stop
        rows.append((start, stop, i, step))
    return _sliced(g, x, *zip(*rows, strict=True)) if rows else x


@exports(op.strided_set)
def strided_set(g, data, v, begin, end, strides):
    shape = static(data, "a slice that is set")
    slices = tuple(slice(r.start, r.stop if r.stop >= 0 else None, r.step)
                   for r in slice_ranges(shape, begin, end, strides, "end"))  # fmt: skip
    places = np.arange(prod(shape)).reshape(shape)[slices].reshape(-1)
    row = op.reshape(data, (-1,))
    return op.reshape(op.scatter.plain(row, 0, ints(g, *places), op.reshape(v, (-1,))), shape)


@exports(op.pad)
def pad(g, x, pad_width, value, mode):
    pairs = pad_pairs(pad_width, x.ndim)
    if mode == "symmetric":
        raise Unconvertible("ONNX pads by no mirror that has the edge twice")
    if not any(map(any, pairs)):
        return x
    widths = g.extents([p[i] for i in (0, 1) for p in pairs])
    return g.node("Pad", x, widths, value if mode == "constant" else None, mode=mode)


@exports(op.concat)
def concat(g, xs, axis):
    if axis is None:
        xs, axis = tuple(op.reshape(x, (-1,)) for x in xs), 0
    return g.node("Concat", *xs, axis=axis) if len(xs) > 1 else xs[0]


def _stack(_, xs, axis):
    at = normalize_axis(axis, xs[0].ndim + 1)
    return op.concat(tuple(op.expand_dims(x, at) for x in xs), at)


@exports(op.split)
def split(g, x, sections, axis):
    sizes = [t.shape[axis] for t in g.result.fields]
    if len(sizes) == 1:
        return (x,)
    if is_static(sizes):
        return g.node("Split", x, ints(g, *sizes), axis=axis)
    if isinstance(sections, tuple):
        raise Unconvertible("parts of an axis whose extent is not known")
    return g.node("Split", x, axis=axis, num_outputs=len(sizes))


def _repeat(_, x, repeats, axis):
    if axis is None:
        x, axis = op.reshape(x, (-1,)), 0
    at, shape = normalize_axis(axis, x.ndim), x.shape
    times = (*(1,) * (at + 1), repeats, *(1,) * (x.ndim - 1 - at))
    wide = op.tile(op.expand_dims(x, at + 1), times)
    return op.reshape(wide, (*shape[:at], shape[at] * repeats, *shape[at + 1 :]))


def _tile(g, x, reps):
    counts = (reps,) if isinstance(reps, int) else reps
    more = len(counts) - x.ndim
    x = op.expand_dims(x, 0, more) if more > 0 else x
    return g.node("Tile", x, ints(g, *(1,) * -more, *counts)) if x.ndim else x


def _roll(_, x, shift, axis):
    shifts, shape = shift if isinstance(shift, tuple) else (shift,), static(x, "a roll")
    if axis is None:
        return op.reshape(op.roll(op.reshape(x, (-1,)), sum(shifts), 0), shape)
    axes = axis if isinstance(axis, tuple) else (axis,)
    for n, at in zip(shifts * (len(axes) // len(shifts)) if shifts else (), axes, strict=True):
        n = n % shape[at] if shape[at] else 0
        if n:
            first, last = op.split(x, (shape[at] - n,), at)
            x = op.concat((last, first), at)
    return x


def _diagonal(g, x, offset, axis1, axis2):
    shape, (a, b) = static(x, "a diagonal"), (normalize_axis(n, x.ndim) for n in (axis1, axis2))
    rest = [i for i in range(x.ndim) if i not in (a, b)]
    offset = max(min(offset, shape[b]), -shape[a])
    places = np.arange(shape[a] * shape[b]).reshape(shape[a], shape[b]).diagonal(offset)
    rows = op.reshape(op.permute_dims(x, (*rest, a, b)),
                      (*(shape[i] for i in rest), shape[a] * shape[b]))  # fmt: skip
    return op.take(rows, ints(g, *places), len(rest), "fast")


@exports(op.reverse_sequence)
def reverse_sequence(g, x, lengths, time, batch):
    time, batch = (normalize_axis(a, x.ndim) for a in (time, batch))
    order = (batch, time, *(i for i in range(x.ndim) if i not in (batch, time)))
    lengths = op.clip(cast(lengths, "int64"), 0, static(x, "sequences")[time])
    rows = op.permute_dims(x, order)
    found = g.node("ReverseSequence", rows, lengths, type=rows.type, batch_axis=0, time_axis=1)
    return op.permute_dims(found, tuple(np.argsort(order).tolist()))


def _sequence_mask(g, x, lengths, value, axis):
    count, batch = static(x, "sequences")[axis], lengths.shape[0]
    first, rest = normalize_axis(axis, x.ndim) == 0, (1,) * (x.ndim - 2)
    places = op.reshape(ints(g, *range(count)), (count, 1, *rest) if first else (1, count, *rest))
    own = op.reshape(cast(lengths, "int64"), (1, batch, *rest) if first else (batch, 1, *rest))
    return op.where(op.less(places, own), x, g.constant(value, x.dtype))


def _bias_add(_, x, bias, axis):
    behind = x.ndim - 1 - normalize_axis(axis, x.ndim)
    return x + (op.reshape(bias, (bias.shape[0], *(1,) * behind)) if behind else bias)


forms(
    arange=_arange,
    bias_add=_bias_add,
    broadcast_to=lambda g, x, shape: g.node("Expand", x, g.extents(g.result.shape)),
    broadcast_to_like=lambda g, x, like: g.node("Expand", x, shape_of(g, like)),
    collapse_sum_like=lambda _, x, like: op.reshape(
        op.sum(x, collapsed_axes(static(x, "a sum"), static(like, "a sum"))), like.shape),
    diagonal=_diagonal,
    expand_dims=_expand_dims,
    flip=_flip,
    full=_filled(),
    full_like=_filled_like(),
    one_hot=lambda g, x, depth, on, off, axis, *_: hot(g, x, depth, on, off, axis),
    ones=_filled(1),
    ones_like=_filled_like(1),
    permute_dims=lambda g, x, axes: (
        g.node("Transpose", x, perm=permutation(axes, x.ndim)) if x.ndim > 1 else x),
    repeat=_repeat,
    reshape_like=lambda g, x, like: g.node("Reshape", x, shape_of(g, like), allowzero=1),
    roll=_roll,
    sequence_mask=_sequence_mask,
    shape_as_tensor=shape_of,
    squeeze=_squeeze,
    stack=_stack,
    swapaxes=_swapaxes,
    tile=_tile,
    tril=lambda g, x, k: g.node("Trilu", x, g.constant(k, "int64"), upper=0),
    triu=lambda g, x, k: g.node("Trilu", x, g.constant(k, "int64"), upper=1),
    zeros=_filled(0),
    zeros_like=_filled_like(0),
)  # fmt: skip
