"""Exporters of products, normalisations, attention and losses."""

from __future__ import annotations

import math

import numpy as np

from meta import op
from meta.base.dtype import is_float
from meta.frontend.core import Unconvertible
from meta.frontend.onnx.export.registry import cast, exports, forms
from meta.frontend.onnx.exporters.shapes import static
from meta.op.attention import HEADS_LATER, mask_repeats, score_scale
from meta.op.core.check import normalize_axis
from meta.op.loss import IGNORED
from meta.op.norm import statistics_dtype
from meta.op.quantized import MIDDLE


def _product(flip_a, flip_b):
    """Of two matrices one node, in the batches of which they may lie."""

    def form(g, a, b):
        if a.ndim == b.ndim == 2 and is_float(a.dtype) and (flip_a or flip_b):
            return g.node("Gemm", a, b, transA=int(flip_a), transB=int(flip_b))
        a = op.swapaxes(a, -1, -2) if flip_a else a
        b = op.swapaxes(b, -1, -2) if flip_b else b
        return g.node("MatMul", a, b)

    return form


exports(op.matmul, op.batch_matmul)(_product(False, False))
exports(op.matmul_nt, op.batch_matmul_nt, op.dense)(_product(False, True))
exports(op.matmul_tn, op.batch_matmul_tn)(_product(True, False))
exports(op.matmul_tt, op.batch_matmul_tt)(_product(True, True))


def _matmul(g, a, b):
    return g.node("MatMul", a, b, type=a.type.with_shape((*a.shape[:-1], b.shape[-1])))


@exports(op.quantized_matmul, wide=True)
def quantized_matmul(g, x, weight, scales, zeros):
    """Of 4 bits, 16 bytes of a weight hold 32 columns, the first 16 in their low halves."""
    packed, middle = weight.dtype == "uint8", MIDDLE[weight.dtype]
    if packed:
        rows, columns = weight.shape
        halves = op.bitwise_and(weight, 15), op.bitwise_right_shift(weight, 4)
        halves = tuple(op.reshape(h, (rows, columns // 16, 16)) for h in halves)
        weight = op.reshape(op.concat(halves, 2), (rows, 2 * columns))
    (rows, columns), groups = weight.shape, scales.shape[1]
    w = op.reshape(cast(weight, x.dtype), (rows, groups, columns // groups))
    w = w - (float(middle) if zeros is None else op.expand_dims(zeros, 2))
    weight = op.reshape(w * op.expand_dims(scales, 2), (rows, columns))
    return _matmul(g, x, op.permute_dims(weight, (1, 0)))


@exports(op.batch_norm_infer)
def batch_norm_infer(g, x, mean, var, w, b, momentum, eps, axis):
    at, wide = normalize_axis(axis, x.ndim), statistics_dtype(x.dtype)
    w = op.ones_like(mean) if w is None else w
    b = op.zeros_like(mean) if b is None else b
    if at == 0 or x.dtype == "float64":
        shape = tuple(-1 if i == at else 1 for i in range(x.ndim))
        scale = cast(w, wide) * op.rsqrt(cast(var, wide) + eps)
        shift = cast(b, wide) - cast(mean, wide) * scale
        y = cast(x, wide) * op.reshape(scale, shape) + op.reshape(shift, shape)
        return cast(y, x.dtype)
    order = (0, at, *(i for i in range(1, x.ndim) if i != at))
    images = op.permute_dims(x, order) if at != 1 else x
    vectors = (cast(v, wide) for v in (w, b, mean, var))
    y = g.node("BatchNormalization", images, *vectors, type=images.type, epsilon=eps)
    return op.permute_dims(y, tuple(np.argsort(order).tolist())) if at != 1 else y


def _affine(x, scale, bias, axis):
    """x times a vector along an axis, plus another."""
    behind = (1,) * (x.ndim - 1 - axis)
    scale, bias = (op.reshape(v, (v.shape[0], *behind)) if behind and v is not None else v
                   for v in (scale, bias))  # fmt: skip
    x = x if scale is None else x * scale
    return x if bias is None else x + bias


def _normalised(x, axes, eps):
    centred = x - op.mean(x, axes, True)
    return centred * op.rsqrt(op.mean(centred * centred, axes, True) + eps)


@exports(op.layer_norm, wide=True)
def layer_norm(g, x, scale, bias, axis, eps):
    at = normalize_axis(axis, x.ndim)
    if at == x.ndim - 1 and x.dtype == "float32" and scale is not None:
        return g.node("LayerNormalization", x, scale, bias, axis=-1, epsilon=eps)
    return _affine(_normalised(x, (at,), eps), scale, bias, at)


@exports(op.rms_norm, wide=True)
def rms_norm(_, x, scale, bias, axis, eps):
    at = normalize_axis(axis, x.ndim)
    return _affine(x * op.rsqrt(op.mean(x * x, (at,), True) + eps), scale, bias, at)


@exports(op.group_norm, wide=True)
def group_norm(g, x, groups, scale, bias, eps):
    if x.dtype == "float32" and scale is not None and bias is not None:
        return g.node("GroupNormalization", x, scale, bias, epsilon=eps, num_groups=groups)
    elements = math.prod(static(x, "groups")[1:]) // groups
    y = _normalised(op.reshape(x, (x.shape[0], groups, elements)), (2,), eps)
    return _affine(op.reshape(y, x.shape), scale, bias, 1)


@exports(op.lrn, wide=True)
def lrn(g, x, size, axis, bias, alpha, beta):
    if normalize_axis(axis, x.ndim) != 1 or size % 2 == 0 or x.dtype == "float64":
        raise Unconvertible("ONNX's LRN is that of an odd number of channels, in float32")
    images = x if x.ndim == 4 else op.reshape(x, (*x.shape[:2], -1, 1))
    y = g.node("LRN", images, type=images.type, size=size, bias=bias, alpha=alpha, beta=beta)
    return op.reshape(y, x.shape)


def _positions(g, extent, axis):
    """0, 1, ... along one of the last two axes of the scores."""
    bounds = (g.extents((n,)) for n in (0, extent, 1))
    places = op.dynamic_arange(*bounds, "int64")
    return op.reshape(places, (extent, 1) if axis == 2 else (1, extent))


@exports(op.fused_attention)
def fused_attention(
    g, query, key, value, mask, causal, scale, layout, window, slopes, dropout_key, dropout_p
):
    if dropout_p:
        raise Unconvertible("it drops weights at random", "model.eval(), which drops nothing")
    dtype, wide = query.dtype, statistics_dtype(query.dtype)
    if layout == HEADS_LATER:
        query, key, value = (op.swapaxes(x, 1, 2) for x in (query, key, value))
    query, key, value = (cast(x, wide) for x in (query, key, value))
    times = query.shape[1] // key.shape[1] if query.shape[1] != key.shape[1] else 1
    if times != 1:
        key, value = (op.repeat(x, times, 1) for x in (key, value))
    query = query * score_scale(scale, query.shape[3])
    scores = _matmul(g, query, op.swapaxes(key, 2, 3))
    i, j = (_positions(g, scores.shape[axis], axis) for axis in (2, 3))
    seen = [op.less_equal(j, i)] if causal else []
    left, right = window or (-1, -1)
    seen += [op.greater_equal(j, i - left)] if left >= 0 else []
    seen += [op.less_equal(j, i + right)] if right >= 0 else []
    if mask is not None:
        repeats = mask_repeats(mask.type, query.shape[0])
        mask = op.tile(mask, (repeats, 1, 1, 1)) if repeats != 1 else mask
        seen += [mask] if mask.dtype == "bool" else []
        scores = scores if mask.dtype == "bool" else scores + cast(mask, wide)
    if slopes is not None:
        slopes = op.expand_dims(cast(slopes, wide), slopes.ndim, 2)
        scores = scores - slopes * cast(op.abs(i - j), wide)
    for one in seen:
        scores = op.where(one, scores, -math.inf)
    weights, nothing = op.softmax(scores, 3), scores.shape[3] == 0
    total = op.zeros(scores.shape[:3], wide) if nothing else op.logsumexp(scores, 3)
    if (mask is not None or window is not None) and not nothing:
        none = op.equal(op.max(scores, 3, True), -math.inf)
        weights = op.where(none, 0.0, weights)
        total = op.where(op.squeeze(none, (3,)), 0.0, total)
    y = cast(_matmul(g, weights, value), dtype)
    return (op.swapaxes(y, 1, 2) if layout == HEADS_LATER else y), total


@exports(op.rotary_embedding, wide=True)
def rotary_embedding(_, x, cos, sin, interleaved):
    ndim, shape = x.ndim, x.shape
    if interleaved:
        pairs = op.reshape(x, (*shape[:-1], shape[-1] // 2, 2))
        a, b = (op.squeeze(p, (ndim,)) for p in op.split(pairs, 2, ndim))
    else:
        a, b = op.split(x, 2, ndim - 1)
    parts = (a * cos - b * sin, b * cos + a * sin)
    return op.reshape(op.stack(parts, ndim), shape) if interleaved else op.concat(parts, ndim - 1)


def _huber(x, y, delta):
    apart = op.abs(x - y)
    return op.where(op.less(apart, delta), apart * apart * 0.5, (apart - 0.5 * delta) * delta)


def _loss(element):
    """A loss of elements, summed as its third argument says; more are those of ``element``."""

    def form(_, x, y, reduction, *options):
        loss = element(x, y, *options)
        if reduction == "none":
            return loss
        if reduction == "batchmean":
            return op.sum(loss) / float(static(loss, "a mean over the batch")[0] or math.nan)
        return op.sum(loss) if reduction == "sum" else op.mean(loss)

    return form


def _cross_entropy(x, y):
    """Logarithms are at least -100, as torch has it."""
    a, b = (op.maximum(op.log(v), -100.0) for v in (x, 1.0 - x))
    return -(y * a + (1.0 - y) * b)


def _of_labels(operator):
    return lambda g, x, y, classes=None: g.node(
        operator, x if classes is None else op.split(x, (classes,), 1)[0], cast(y, "int64"),
        reduction="mean", ignore_index=IGNORED)  # fmt: skip


forms(
    wide=True,
    binary_cross_entropy=_loss(_cross_entropy),
    binary_cross_entropy_with_logits=_loss(
        lambda x, y: op.maximum(x, 0.0) - x * y + op.log1p(op.exp(-op.abs(x)))),
    cross_entropy=_of_labels("SoftmaxCrossEntropyLoss"),
    huber_loss=_loss(_huber),
    instance_norm=lambda _, x, scale, bias, eps: _affine(
        _normalised(x, tuple(range(2, x.ndim)), eps), scale, bias, 1),
    kl_div=_loss(lambda x, y, log_target: (
        op.exp(y) * (y - x) if log_target else op.xlogy(y, y) - y * x)),
    l1_loss=_loss(lambda x, y: op.abs(x - y)),
    mse_loss=_loss(lambda x, y: op.square(x - y)),
    nll_loss=_of_labels("NegativeLogLikelihoodLoss"),
    smooth_l1_loss=lambda _, x, y: op.mean(_huber(x, y, 1.0)),
)  # fmt: skip


@exports(op.einsum)
def einsum(g, equation, xs):
    """ONNX infers no shape where operands are broadcast."""
    labels = {}
    for term, x in zip(equation.replace(" ", "").partition("->")[0].split(","), xs, strict=True):
        before, _, behind = term.partition("...")
        if "..." in term:
            labels.setdefault("...", set()).add(x.shape[len(before) : x.ndim - len(behind)])
        for i, label in enumerate((*before, *behind)):
            at = i if i < len(before) else i - len(before) + x.ndim - len(behind)
            labels.setdefault(label, set()).add(x.shape[at])
    if any(len(extents) > 1 for extents in labels.values()):
        raise Unconvertible("its operands have other extents of one axis")
    return g.node("Einsum", *xs, equation=equation)
