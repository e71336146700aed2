"""Converters of layers (convolution, pooling, normalisation, softmax, dropout, losses), of matrix
products and attention, and of operators on images and of object detection.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from meta import op
from meta.frontend.core import Unconvertible, constant_value
from meta.frontend.core.arguments import broadcast_along
from meta.frontend.core.arithmetic import product
from meta.frontend.core.operators import (
    batch_norm_by_batch,
    decode_boxes,
    dropout,
    grid_sample,
    next_threshold,
    nll_loss,
    normalize_trailing_axes,
    repeat_per_class,
    rows_of_selected,
    suppress_boxes,
)
from meta.frontend.relax.converters.movement import numbers
from meta.frontend.relax.values import relax
from meta.runtime.ndarray import array

_WINDOW = ("strides", "padding", "dilation", "groups")
_TRANSPOSED = ("strides", "padding", "output_padding", "dilation", "groups")
_POOLED = ("pool_size", "strides", "padding", "dilation", "ceil_mode", "count_include_pad")


@relax.each(op.conv1d, op.conv2d, op.conv3d, form="nn.{}", rest=_WINDOW)
def conv(base, x, w, *, data_layout, kernel_layout, out_layout, out_dtype, **window):
    numbers = (window[n] for n in _TRANSPOSED if n in window)
    given = (*numbers, data_layout, kernel_layout, out_layout or data_layout)
    return product(lambda a, b: base.plain(a, b, *given), x, w, out_dtype)


for _n, _base in enumerate((op.conv_transpose1d, op.conv_transpose2d, op.conv_transpose3d), 1):
    relax(f"nn.conv{_n}d_transpose", _base, rest=_TRANSPOSED)(partial(conv, _base))


def _same_layout(layout, out_layout):
    if out_layout and out_layout != layout:
        raise Unconvertible(f"pooling from layout {layout} to {out_layout} is not supported")


_POOLS = (op.max_pool1d, op.max_pool2d, op.max_pool3d)
_POOLS += (op.avg_pool1d, op.avg_pool2d, op.avg_pool3d)
_ADAPTIVE = (op.adaptive_avg_pool1d, op.adaptive_avg_pool2d, op.adaptive_avg_pool3d)


@relax.each(*_POOLS, form="nn.{}", rest=_POOLED)
def pool(base, x, *, layout, out_layout, **window):
    _same_layout(layout, out_layout)
    return base.plain(x, *(window[n] for n in _POOLED), layout)


@relax.each(*_ADAPTIVE, form="nn.{}")
def adaptive_pool(base, x, *, output_size, layout, out_layout):
    """No size leaves the extents as they are."""
    _same_layout(layout, out_layout)
    own = tuple(e for e, letter in zip(x.shape, layout, strict=True) if letter in "DHW")
    return base.plain(x, output_size or own, layout)


def _pooling_backward(name, gradient, forward):
    @relax(name, gradient, rest=_POOLED)
    def backward(dy, x, *, layout, out_layout, **window):
        """Of the result y only the type counts where there is no ``forward`` to compute it."""
        if layout != "NCHW":
            raise Unconvertible(f"the layout {layout!r} is not supported", hint="NCHW")
        _same_layout(layout, out_layout)
        numbers = [window[n] for n in _POOLED]
        return gradient(x, dy if forward is None else forward.plain(x, *numbers), dy, *numbers)


_pooling_backward("grad.avg_pool2d_backward", op.avg_pool2d_dx, None)
_pooling_backward("grad.max_pool2d_backward", op.max_pool2d_dx, op.max_pool2d)

relax.same("nn.softmax", op.softmax, "axis")
relax.same("nn.log_softmax", op.log_softmax, "axis")
relax("nn.dropout", op.dropout_train)(dropout)
relax("nn.nll_loss", op.take_along_axis, op.take)(nll_loss)


@relax("nn.batch_norm", op.batch_norm_train, op.batch_norm_infer)
def batch_norm(
    x, gamma, beta, mean, variance, *, axis, epsilon, center, scale, momentum, training, call
):
    """(y, running mean, running variance).

    A model in train mode writes the running statistics, where they are state of the model. A
    program that asks for training itself returns them instead, the variance being the biased one.
    """
    w, b = gamma if scale else None, beta if center else None
    options = momentum, epsilon, axis
    if training:
        return batch_norm_by_batch(x, mean, variance, w, b, *options)
    if call.training and constant_value(mean) is None and constant_value(variance) is None:
        return op.batch_norm_train(x, mean, variance, w, b, *options)
    return op.batch_norm_infer(x, mean, variance, w, b, *options), mean, variance


def _trailing(name, axes, ndim):
    """Return the first of the axes, which must be the last ones of the tensor."""
    places = sorted(a % ndim for a in axes)
    if places != list(range(ndim - len(places), ndim)):
        raise Unconvertible(f"{name} over axes that are not the last ones is not supported")
    return places[0]


@relax("nn.layer_norm", op.layer_norm)
def layer_norm(x, gamma, beta, *, axes, epsilon, center, scale):
    first = _trailing("layer_norm", axes, x.ndim)
    parameters = (gamma if scale else None, beta if center else None)
    return normalize_trailing_axes(op.layer_norm.plain, x, first, *parameters, eps=epsilon)


@relax("nn.rms_norm", op.rms_norm)
def rms_norm(x, weight, *, axes, epsilon):
    first = _trailing("rms_norm", axes, x.ndim)
    return normalize_trailing_axes(op.rms_norm.plain, x, first, weight, eps=epsilon)


def _are_channels_and_rest(x, channel_axis, axes):
    """Whether the channels are on axis 1, and the axes all those behind."""
    return channel_axis % x.ndim == 1 and sorted(a % x.ndim for a in axes) == [*range(2, x.ndim)]


@relax("nn.group_norm", op.group_norm)
def group_norm(x, gamma, beta, *, num_groups, channel_axis, axes, epsilon, center, scale):
    if not _are_channels_and_rest(x, channel_axis, axes):
        raise Unconvertible("group_norm is supported for channels on axis 1, over all axes behind")
    parameters = (gamma if scale else None, beta if center else None)
    return op.group_norm.plain(x, num_groups, *parameters, epsilon)


@relax("nn.instance_norm", op.instance_norm, op.mean, op.var)
def instance_norm(x, gamma, beta, *, channel_axis, axes, epsilon, center, scale):
    """Other axes than all behind the channels are normalised by mean and variance."""
    w, b = gamma if scale else None, beta if center else None
    if _are_channels_and_rest(x, channel_axis, axes):
        return op.instance_norm.plain(x, w, b, epsilon)
    y = op.subtract(x, op.mean(x, axes, True))
    y = op.multiply(y, op.rsqrt(op.add(op.var(x, axes, True, correction=0), epsilon)))
    y = y if w is None else op.multiply(y, broadcast_along(w, x.ndim, channel_axis))
    return y if b is None else op.add(y, broadcast_along(b, x.ndim, channel_axis))


@relax("nn.cross_entropy_with_logits", op.multiply, op.sum)
def cross_entropy_with_logits(predictions, labels):
    """``-sum(predictions * labels)`` per example; in spite of its name there is no softmax."""
    total = op.negative(op.sum(op.multiply(predictions, labels)))
    return op.divide(total, float(predictions.shape[0])) if predictions.ndim > 1 else total


@relax("einsum", op.einsum)
def einsum(operands, *, subscripts):
    return op.einsum(subscripts, *operands)


@relax("matmul", op.matmul, op.batch_matmul)
def matmul(x1, x2, *, out_dtype):
    """Vectors, matrices, and stacks of matrices that broadcast."""
    return product(op.matmul, x1, x2, out_dtype)


@relax("outer", op.multiply)
def outer(x1, x2):
    return op.multiply(op.reshape(x1, (-1, 1)), op.reshape(x2, (1, -1)))


@relax("nn.attention", "nn.attention_bias", op.fused_attention)
def attention(query, key, value, bias=None, *, scale, causal_mask, window_size, call):
    """Tensors are [batch, length, heads, width]. The bias is added to the scores."""
    if window_size is not None:
        raise Unconvertible(f"attention in a window (window_size={window_size}) is not supported")
    causal = causal_mask
    if causal == "BottomRight" and query.shape[1] != key.shape[1]:
        bias = _below(query, key, bias, call.device)
        causal = None
    how = {"causal": bool(causal), "scale": scale, "layout": "BSHD"}
    return op.fused_attention(query, key, value, bias, **how)[0]


def _below(query, key, bias, device):
    """Return a mask for which the last query sees the last key; of more queries than keys every
    one sees as many more, as TVM has it.
    """
    rows, columns = query.shape[1], key.shape[1]
    seen = np.tril(np.ones((rows, columns), bool), abs(rows - columns))
    if bias is None:
        return array(seen, device=device)
    return op.add(bias, array(np.where(seen, 0.0, -np.inf), query.dtype, device=device))


@relax("multinomial_from_uniform", op.cumsum, op.less_equal)
def multinomial_from_uniform(probabilities, uniform, rows, *, dtype):
    """The first class at which the sum of probabilities exceeds the uniform number."""
    sums = op.cumsum(probabilities, 1, probabilities.dtype)
    chosen = op.take(sums, op.reshape(rows, (-1,)), 0)
    below = op.sum(op.less_equal(chosen, uniform), 1, True)
    return op.astype(op.minimum(below, probabilities.shape[1] - 1), dtype)


_OPTIONS = "method coordinate_transformation_mode rounding_method cubic_alpha cubic_exclude"
_RESIZING = ("layout", *_OPTIONS.split())
_BOXES = "max_output_size iou_threshold force_suppress top_k coord_start score_index id_index"
_SUPPRESSION = (*_BOXES.split(), "return_indices", "invalid_to_bottom")


_REGION = ("roi", "extrapolation_value")


@relax.each(op.resize2d, op.resize3d, form="image.{}", rest=(*_RESIZING, *_REGION))
def resize(base, x, size, *, out_dtype, **options):
    """Region and value outside are those of "tf_crop_and_resize" alone."""
    extents = tuple(numbers(size, "the size of an image"))
    return base(x, extents, *(options[n] for n in _RESIZING), out_dtype or "")


relax.same("vision.roi_pool", op.roi_pool, "pooled_size", "spatial_scale", "layout")
_COUNTED = ("score_threshold", "id_index", "score_index")
relax.same("vision.get_valid_counts", op.get_valid_counts, *_COUNTED)


relax("image.grid_sample", op.grid_sample)(grid_sample)


@relax("image.affine_grid", op.matmul)
def affine_grid(x, size, *, align_corners, call):
    """Positions [N, axes, ...] of a grid from -1 to 1, by matrices [N, axes, axes + 1]: of the
    first and last elements with align_corners, of outer edges without.
    """
    extents = tuple(numbers(size, "the size of a grid"))
    planes = np.meshgrid(*(_centres(e, align_corners) for e in extents), indexing="ij")
    rows = np.stack([p.reshape(-1) for p in (*planes[::-1], np.ones(extents))])
    places = x @ array(rows, x.dtype, device=call.device)
    return op.reshape(places, (x.shape[0], len(extents), *extents))


def _centres(extent, align_corners):
    if align_corners:
        return np.linspace(-1.0, 1.0, extent)
    return (2.0 * np.arange(extent) + 1.0) / extent - 1.0


@relax("vision.non_max_suppression", op.non_max_suppression, rest=_SUPPRESSION)
def non_max_suppression(x, count, indices, *, soft_nms_sigma, score_threshold, **options):
    if soft_nms_sigma or score_threshold:
        raise Unconvertible("soft suppression and a threshold of scores are not supported")
    return op.non_max_suppression(x, count, indices, **options)


@relax("vision.all_class_non_max_suppression", op.non_max_suppression, op.argwhere)
def all_class_non_max_suppression(
    boxes, scores, limit, iou_threshold, score_threshold, *, output_format, call
):
    """ONNX's NonMaxSuppression: (rows (image, class, box) int64[?, 3], how many int64[1]).

    boxes: [N, boxes, 4], two opposite corners. scores: [N, classes, boxes]. A box is dropped if it
    overlaps a better one by more than the threshold. Every class of an image is by itself.
    """
    if output_format != "onnx":
        raise Unconvertible(f"the output format {output_format!r} is not supported", hint="onnx")
    images, classes, count = scores.shape
    flat = op.reshape(scores, (images * classes, count))
    good = op.greater(flat, op.astype(op.reshape(score_threshold, ()), scores.dtype))
    most, overlap = int(_number(limit)), next_threshold(_number(iou_threshold))
    kept = suppress_boxes(repeat_per_class(boxes, classes), flat, good, most, overlap, call).indices
    rows = rows_of_selected(kept, classes, call)
    return rows, op.reshape(op.sum(op.greater_equal(kept, 0)), (1,))


def _number(value):
    now = constant_value(value)
    if now is None:
        raise Unconvertible("a limit or threshold that depends on inputs is not supported")
    return now.item()


_REGIONS = ("pooled_size", "spatial_scale", "sample_ratio", "layout", "mode", "aligned")
relax.same("vision.roi_align", op.roi_align, *_REGIONS)


@relax("vision.multibox_transform_loc", op.exp, op.softmax)
def multibox_transform_loc(
    scores, places, anchors, *, clip, threshold, variances, keep_background, apply_softmax
):
    """(boxes [B, N, 4] as two corners (y, x, y, x), scores [B, C, N]) of TFLite's detectors.

    scores: [B, C, N]. places: [B, 4 * N], (x, y, w, h) relative to anchors [1, N, 4], which are
    (left, top, right, bottom).
    """
    places = op.reshape(places, (places.shape[0], -1, 4))
    left, top, right, bottom = decode_boxes(places, anchors, variances)
    boxes = op.concat((top, left, bottom, right), 2)
    boxes = op.clip(boxes, 0.0, 1.0) if clip else boxes
    scores = op.softmax(scores, 1) if apply_softmax else scores
    scores = scores * op.astype(op.greater_equal(scores, threshold), scores.dtype)
    if not keep_background:
        rest = op.strided_slice(scores, (0, 1), (scores.shape[0], scores.shape[1]))
        scores = op.concat((op.zeros_like(scores[:, :1]), rest), 1)
    return boxes, scores
