"""What operators of layers make of batched tensors: losses, normalisations with a gradient,
attention.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meta import op
from meta.ir.dims import product
from meta.op.core.function import device_of
from meta.op.core.op import by_schema
from meta.op.loss import IGNORED
from meta.op.loss_reduction import class_indices, in_compute_dtype
from meta.passes.batching.rules import batched_call
from meta.passes.batching.site import Operand, Site, rule


@rule(
    *(op.mse_loss, op.l1_loss, op.huber_loss, op.binary_cross_entropy, op.kl_div),
    op.binary_cross_entropy_with_logits,
)
def loss(at: Site) -> Any:
    """The loss of each element, reduced for each example."""
    if at["reduction"] not in ("mean", "sum"):
        return None
    losses = at.run(reduction="none")
    axes = tuple(range(1, 1 + at["prediction"].ndim))
    return (op.mean if at["reduction"] == "mean" else op.sum)(losses, axes)


@rule(
    *(op.mse_loss_dpred, op.l1_loss_dpred, op.huber_loss_dpred, op.kl_div_dpred),
    *(op.binary_cross_entropy_dpred, op.binary_cross_entropy_with_logits_dpred),
)
def loss_dpred(at: Site) -> Any:
    """As of the loss of each element."""
    dy, prediction = at["dy"], at["prediction"]
    if at["reduction"] not in ("mean", "sum"):
        return None
    each = op.reshape(at.batched(dy), (at.size, *[1] * prediction.ndim))
    if at["reduction"] == "mean":
        count = product(prediction.shape)
        if type(count) is not int:
            return None
        each = op.divide(each, 1.0 * max(count, 1))
    return at.run(reduction="none", dy=op.broadcast_to(each, (at.size, *prediction.shape)))


@rule(op.smooth_l1_loss)
def smooth_l1_loss(at: Site) -> Any:
    """The mean over the elements of each example."""
    losses = by_schema(op.huber_loss)(*map(at.batched, at.args.values()), "none")
    return op.mean(losses, tuple(range(1, losses.ndim)))


@rule(op.smooth_l1_loss_dpred, op.smooth_l1_loss_dtarget)
def smooth_l1_loss_dpred(at: Site) -> Any:
    """Over the number of elements of one example."""
    first, second = map(at.batched, at.args.values())
    if at.op is op.smooth_l1_loss_dtarget:
        first, second = second, first
    count = product(at.shape)
    if type(count) is not int:
        return None
    return op.divide(
        by_schema(op.clip)(op.subtract(first, second), -1.0, 1.0), float(max(count, 1))
    )


@rule(op.nll_loss_dtarget, op.cross_entropy_dtarget)
def loss_dtarget(at: Site) -> Any:
    """There is none."""
    return op.zeros_like(at.batched(at["target"]))


@rule(op.cross_entropy, op.nll_loss, op.cross_entropy_train)
def cross_entropy(at: Site) -> Any:
    """The mean over the rows of each example, of log(sum(exp(scores))) less the label's score."""
    if at.args.get("classes") is not None:
        return None
    scores, labels, counts = _rows(at)
    largest = op.max(scores, 2, True)
    total = op.sum(op.exp(op.subtract(scores, largest)), 2, True)
    chosen = op.take_along_axis(scores, labels, 2)
    losses = op.negative(chosen)
    if at.op is not op.nll_loss:
        losses = op.subtract(op.add(op.log(total), largest), chosen)
    number = op.sum(op.astype(counts, losses.dtype), (1, 2))
    mean = op.divide(op.sum(op.where(counts, losses, 0.0), (1, 2)), number)
    result = op.astype(mean, at.types[0].dtype)
    if at.op is not op.cross_entropy_train:
        return result
    return result, op.squeeze(largest, 2), op.squeeze(total, 2)


@rule(op.cross_entropy_dpred, op.nll_loss_dpred, op.cross_entropy_train_dpred)
def cross_entropy_dpred(at: Site) -> Any:
    """``(softmax(scores) - hot) * dy / count`` of each row; of `nll_loss` without the softmax."""
    if at.args.get("classes") is not None:
        return None
    scores, labels, counts = _rows(at)
    hot = op.equal(op.arange(0, scores.shape[2], 1, "int64", device_of(labels)), labels)
    part = op.negative(op.astype(hot, scores.dtype))
    if at.op is not op.nll_loss_dpred:
        part = op.add(_softmax(at, scores), part)
    number = op.sum(op.astype(counts, scores.dtype), (1, 2), True)
    dy = op.reshape(op.astype(at.batched(at["dy"]), scores.dtype), (at.size, 1, 1))
    found = op.where(counts, op.multiply(part, op.divide(dy, number)), 0.0)
    return op.astype(found, at.types[0].dtype)


def _softmax(at: Site, scores: Any) -> Any:
    if at.op is not op.cross_entropy_train_dpred:
        return op.softmax(scores, 2)
    largest, total = (op.expand_dims(at.batched(at[n]), 2) for n in ("largest", "total"))
    return op.divide(op.exp(op.subtract(scores, largest)), total)


def _rows(at: Site) -> tuple[Any, Any, Any]:
    """Return scores [batch, rows, classes], the classes of the rows, 0 of those that do not count,
    and whether they do [batch, rows, 1].
    """
    scores = in_compute_dtype(at.batched(at["prediction"]))
    labels = op.expand_dims(op.astype(at.batched(at["target"]), "int64"), 2)
    counts = op.not_equal(labels, IGNORED)
    return scores, class_indices(op.where(counts, labels, 0), scores.shape[2]), counts


@rule(op.layer_norm, op.rms_norm, op.layer_norm_train)
def normalize(at: Site) -> Any:
    """A scale of each example is multiplied behind."""
    x, axis = at["x"], at.axis(at["x"])
    if not at.is_batched("scale", "bias"):
        return None
    found = at.run(axis=axis, scale=None, bias=None)
    y, *statistics = found if isinstance(found, tuple) else (found,)
    for name, apply in (("scale", op.multiply), ("bias", op.add)):
        if at[name] is not None:
            y = op.astype(apply(y, _along(at, at[name], x, axis)), at.types[0].dtype)
    return (y, *statistics) if statistics else y


def _along(at: Site, parameter: Operand, x: Operand, axis: int) -> Any:
    """Return a vector for each example as it broadcasts along an axis of x."""
    shape = [at.size, *[1] * x.ndim]
    shape[axis] = x.shape[axis - 1]
    return op.reshape(at.batched(parameter), tuple(shape))


@rule(op.layer_norm_dx, op.layer_norm_train_dx, op.rms_norm_dx)
def normalize_dx(at: Site) -> Any:
    """The scale is multiplied before, and its gradient is a sum over the rows of each example."""
    x, axis, scale = at["x"], at.axis(at["x"]), at["scale"]
    if scale is None or len({o.value.dtype for o in (x, scale, at["dy"])}) > 1:
        return None
    dy, values = at.batched(at["dy"]), at.batched(x)
    dx = at.run(axis=axis, scale=None, dy=op.multiply(dy, _along(at, scale, x, axis)))
    if at.op is op.layer_norm_train_dx:
        mean, inverse = (op.expand_dims(at.batched(at[n]), axis) for n in ("mean", "invvar"))
    else:
        square = op.multiply(values, values)
        mean = op.mean(values, axis, True) if at.op is op.layer_norm_dx else None
        spread = op.mean(square, axis, True) if mean is None else op.var(values, axis, True)
        inverse = op.rsqrt(op.add(spread, at["eps"]))
    normed = op.multiply(values if mean is None else op.subtract(values, mean), inverse)
    others = tuple(i for i in range(1, 1 + x.ndim) if i != axis)
    products = op.astype(op.multiply(dy, normed), dy.dtype)
    return dx, op.sum(products, others), op.sum(dy, others)


@rule(op.fused_attention, op.fused_attention_dx)
def attention(at: Site) -> Any:
    """A mask, or slopes, of each example that its batches share are one of each of them."""
    rows, changed = at["query"].shape[0], {}
    for name, ndim in (("mask", 4), ("slopes", 2)):
        given = at[name]
        own = given is not None and given.shape[: 1 - ndim] in ((), (1,))
        if own and given.batched and given.shape[:1] != (rows,):
            shape = (*[1] * (ndim - 1 - given.ndim), *given.shape[1 - ndim :])
            value = op.reshape(given.value, (at.size, 1, *shape))
            changed[name] = Operand(op.broadcast_to(value, (at.size, rows, *shape)), True)
    return batched_call(replace(at, args={**at.args, **changed})) if changed else None


@rule(op.rotary_embedding)
def rotary_embedding(at: Site) -> Any:
    """Both tables are batched, or none is."""
    if at["cos"].batched == at["sin"].batched:
        return None
    both = {n: Operand(at.batched(at[n]), True) for n in ("cos", "sin")}
    return batched_call(replace(at, args={**at.args, **both}))


@rule(op.rotary_embedding_dtable)
def rotary_embedding_dtable(at: Site) -> Any:
    """Of tables of each example."""
    table = at.aligned(Operand(at.batched(at["cos"]), True), at["x"].ndim)
    return tuple(op.reshape(y, (at.size, *at.shape)) for y in at.run(cos=table))
