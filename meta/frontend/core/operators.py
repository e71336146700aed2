"""Operators that Relay and Relax define alike: both register these functions."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from meta import op
from meta.base.dtype import is_float
from meta.frontend.core.arguments import (
    constant,
    constant_number,
    reshape_as,
    static_extent,
)
from meta.frontend.core.arithmetic import cast_number, cast_to, truncated_quotient
from meta.frontend.core.converter import Unconvertible


def full_tensor(value, shape, dtype, call):
    """A tensor of one number, which is known or not."""
    number = constant_number(value)
    if number is not None:
        return op.full(shape, cast_number(number, dtype), dtype, str(call.device))
    return op.broadcast_to(cast_to(op.reshape(value, ()), dtype), shape)


def filled_like(x, value):
    """A tensor of one number, of the shape and dtype of another."""
    number = constant_number(value)
    if number is not None:
        return op.full_like(x, cast_number(number, x.dtype))
    return op.broadcast_to_like(cast_to(op.reshape(value, ()), x.dtype), x)


def scan(base, x, axis, dtype, exclusive):
    """Accumulate along an axis; without one the elements are in one row."""
    if axis is None:
        x, axis = op.reshape(x, (-1,)), 0
    return base.plain(x, axis, dtype, bool(exclusive))


def mean(x, axes, keepdims):
    """The mean over normalized axes; of integers in their dtype, without the fraction."""
    if is_float(x.dtype):
        return op.mean(x, axes, keepdims)
    total = cast_to(op.sum(x, axes, keepdims=keepdims), x.dtype)
    count = prod(static_extent(x.shape[a], "what is averaged") for a in axes)
    return truncated_quotient(total, op.full_like(total, count))


def without_negative_padding(x, pairs):
    """Cut off where (before, after) of an axis are below 0; return x and the pairs that are left to
    pad.
    """
    if all(min(p) >= 0 for p in pairs):
        return x, pairs
    begin = tuple(max(-b, 0) for b, _ in pairs)
    end = tuple(e - max(-a, 0) for e, (_, a) in zip(x.shape, pairs, strict=True))
    return op.strided_slice(x, begin, end), [(max(b, 0), max(a, 0)) for b, a in pairs]


def normalize_trailing_axes(function, x, first, *parameters, eps):
    """Normalise over the axes from ``first`` on, by `layer_norm` or `rms_norm`. parameters: of the
    shape of these axes, or None.
    """
    if first == x.ndim - 1:
        return function(x, *parameters, axis=-1, eps=eps)
    row = prod(x.shape[first:])
    flat = [None if p is None else op.reshape(p, (row,)) for p in parameters]
    y = function(op.reshape(x, (*x.shape[:first], row)), *flat, axis=-1, eps=eps)
    return reshape_as(y, x)


def batch_norm_by_batch(x, mean, variance, w, b, momentum, eps, axis=1):
    """(y, running mean, running variance), normalised by the batch's own statistics; the variance
    is the biased one.
    """
    axes = tuple(a for a in range(x.ndim) if a != axis % x.ndim)
    now = cast_to(op.mean(x, axes), mean.dtype), cast_to(op.var(x, axes), variance.dtype)
    y = op.batch_norm_infer(x, *now, w, b, momentum, eps, axis)
    old = (op.multiply(v, 1 - momentum) for v in (mean, variance))
    return y, *(op.add(o, op.multiply(n, momentum)) for o, n in zip(old, now, strict=True))


def meshgrid(tensors, *, indexing):
    if indexing not in ("ij", "xy"):
        raise Unconvertible(f"the indexing {indexing!r} is unknown", hint='"ij" or "xy"')
    return op.meshgrid(*tensors, indexing=indexing)


def dropout(x, *, rate, call):
    """(y, mask), the mask in the dtype of x; without training nothing is dropped."""
    if not call.training:
        return x, op.ones_like(x)
    y, mask, _ = op.dropout_train(x, rate)
    return y, op.astype(mask, x.dtype)


def nll_loss(predictions, targets, weights=None, *, reduction, ignore_index):
    """-weights[t] * predictions[n, t, ...] at every target t that is not ``ignore_index``; as it
    is ("none"), added up ("sum"), or divided by the sum of the weights that took part ("mean").
    """
    if reduction not in ("none", "sum", "mean"):
        raise Unconvertible(f"reduction is one of none, sum, mean; not {reduction!r}")
    axis = 1 if predictions.ndim > 1 else 0
    counts = op.not_equal(targets, ignore_index)
    # An ignored target may name no class at all.
    classes = op.where(counts, targets, op.zeros_like(targets))
    picked = op.squeeze(op.take_along_axis(predictions, op.expand_dims(classes, axis), axis), axis)
    weight = op.ones_like(picked) if weights is None else op.take(weights, classes)
    weight = op.where(counts, weight, 0.0)
    loss = op.where(counts, -picked * weight, 0.0)
    if reduction == "none":
        return loss
    total = op.sum(loss)
    return total / op.sum(weight) if reduction == "mean" else total


def grid_sample(x, grid, *, method, layout, padding_mode, align_corners):
    """The grid has its positions along axis 1."""
    if layout not in ("NCHW", "NCDHW"):
        raise Unconvertible(f"the layout {layout!r} is not supported", hint="NCHW or NCDHW")
    last = op.permute_dims(grid, (0, *range(2, grid.ndim), 1))
    return op.grid_sample(x, last, method, padding_mode, bool(align_corners))


REDUCTIONS = {"mul": "prod", "min": "amin", "max": "amax"}
"""Names of reductions, and what `scatter_reduce` calls them."""


def wrap_negative_indices(indices, extent):
    """Return indices of which the negative ones are counted from the end."""
    extent = extent if isinstance(extent, int) else cast_to(extent, indices.dtype)
    return op.where(op.less(indices, 0), op.add(indices, extent), indices)


def reduce_at(x, indices, updates, reduction, call):
    """Combine updates with the elements or slices of x at the coordinates, which are on the first
    axis of the indices and not negative. ``reduction`` is that of `scatter_reduce`; None writes.
    """
    extents = [static_extent(d, "the tensor to be written to") for d in x.shape]
    depth = indices.shape[0]
    # The named axes become one, the others another, along which every index is repeated.
    strides = [prod(extents[i + 1 : depth]) for i in range(depth)]
    factors = constant(np.reshape(strides, (depth, *(1,) * (indices.ndim - 1))), "int64", call)
    places = op.sum(op.multiply(op.astype(indices, "int64"), factors), 0)
    rows, columns = prod(extents[:depth]), prod(extents[depth:])
    count = prod(static_extent(d, "the indices") for d in places.shape)
    places = op.broadcast_to(op.reshape(places, (count, 1)), (count, columns))
    flat, updates = op.reshape(x, (rows, columns)), op.reshape(updates, (count, columns))
    if reduction is None:
        y = op.scatter(flat, 0, places, updates)
    else:
        y = op.scatter_reduce(flat, 0, places, updates, reduction)
    return op.reshape(y, tuple(extents))


def by_batch(indices, batch, what, call):
    """Put the places along the first ``batch`` axes before coordinates, which are on axis 0."""
    rest = tuple(static_extent(d, what) for d in indices.shape[1:])
    own = [np.broadcast_to(i, rest) for i in np.ogrid[tuple(slice(d) for d in rest)][:batch]]
    return op.concat((constant(own, indices.dtype, call), indices), 0)


class SelectedBoxes(NamedTuple):
    """What is left of each batch element: indices of boxes int32[batch, boxes], best first, then
    -1; how many, int32[batch]; and whether there is one at each place, bool[batch, boxes].
    """

    indices: Any
    count: Any
    present: Any


def take_rows(x, order):
    """Return rows [batch, n, width] of ``x`` [batch, boxes, width] by their numbers [batch, n]."""
    index = op.expand_dims(op.astype(order, "int64"), 2)
    return op.take_along_axis(x, op.broadcast_to(index, (*order.shape, x.shape[2])), 1)


def suppress_boxes(boxes, scores, valid, limit, iou, call):
    """Keep of every batch element the boxes that overlap no better one that is kept.

    boxes: [batch, boxes, 4], two opposite corners each. scores: [batch, boxes]. valid: bool of that
    shape, the boxes that take part; they have higher scores than the others. limit: how many to
    keep at most, negative for all. iou: the least overlap that drops a box, above 0.

    Ranks stand for the scores, so that scores of any sign count.
    """
    count = scores.shape[1]
    numbers = constant(np.arange(count), "int32", call)
    order = op.argsort.plain(scores, 1, True, "int32")
    ranks = op.astype(count - numbers, boxes.dtype)
    ranks = op.expand_dims(op.broadcast_to(ranks, scores.shape), 2)
    rows = op.concat((ranks, take_rows(boxes, order)), 2)
    amount = op.astype(op.sum(op.astype(valid, "int32"), 1), "int32")
    indices, kept = op.non_max_suppression(
        rows, amount, order, limit, iou, True, -1, 1, 0, -1, True, False
    )
    kept = op.reshape(kept, (-1,))
    return SelectedBoxes(indices, kept, op.expand_dims(kept, 1) > op.expand_dims(numbers, 0))


def decode_boxes(places, anchors, variances):
    """Return the (left, top, right, bottom), each [B, N, 1], of boxes [B, N, 4], (x, y, w, h)
    relative to anchors [1, N, 4], which are (left, top, right, bottom).
    """
    x, y, w, h = op.split(places, 4, 2)
    left, top, right, bottom = op.split(anchors, 4, 2)
    width, height = right - left, bottom - top
    x = x * variances[0] * width + (left + right) * 0.5
    y = y * variances[1] * height + (top + bottom) * 0.5
    half_w = op.exp(w * variances[2]) * width * 0.5
    half_h = op.exp(h * variances[3]) * height * 0.5
    return x - half_w, y - half_h, x + half_w, y + half_h


def repeat_per_class(boxes, classes):
    """Return boxes [N, boxes, 4] once for every class: [N * classes, boxes, 4]."""
    batch, count, _ = boxes.shape
    each = op.broadcast_to(op.expand_dims(boxes, 1), (batch, classes, count, 4))
    return op.reshape(each, (batch * classes, count, 4))


def rows_of_selected(indices, classes, call):
    """Return rows (image, class, box), int64[?, 3], of the indices of `SelectedBoxes` whose batch
    is that of images and their classes.
    """
    found = op.argwhere(op.greater_equal(indices, 0))
    row = op.take(found, constant(0, "int64", call), 1)
    box = cast_to(op.gather_nd(indices, op.permute_dims(found)), "int64")
    return op.stack((op.floor_divide(row, classes), op.remainder(row, classes), box), 1)


def next_threshold(overlap):
    """Return the least overlap above a known one: base operators drop a box that reaches it."""
    return float(np.nextafter(np.float32(overlap), np.float32(np.inf)))
