"""Loss functions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import meta
from tools.torch_samples.compose import axis_of
from tools.torch_samples.decline import decline_if
from tools.torch_samples.families.products import cosine_similarity, linear, pairwise_distance


def reduced(loss: Any, reduction: str) -> Any:
    """Return the mean, the sum, or every element."""
    return {"mean": meta.mean, "sum": meta.sum, "none": lambda x: x}[reduction](loss)


def pair(function: Any) -> Any:
    """Return torch's form of an elementwise loss: both arguments are broadcast."""

    def loss(
        input: Any,
        target: Any,
        *,
        size_average: Any = None,
        reduce: Any = None,
        reduction: str = "mean",
        weight: Any = None,
        **options: Any,
    ) -> Any:
        shape = np.broadcast_shapes(input.shape, target.shape)
        prediction, truth = (
            t if t.shape == shape else meta.broadcast_to(t, shape) for t in (input, target)
        )
        if weight is None:
            return function(prediction, truth, reduction, **options)
        return reduced(function(prediction, truth, "none", **options) * weight, reduction)

    return loss


def smooth_l1(input: Any, target: Any, *, reduction: str = "mean", beta: float = 1.0) -> Any:
    """Huber's loss over beta; the absolute error where beta is 0."""
    if beta == 0:
        return pair(meta.l1_loss)(input, target, reduction=reduction)
    if beta == 1 and reduction == "mean" and input.shape == target.shape:
        return meta.smooth_l1_loss(input, target)
    return pair(meta.huber_loss)(input, target, reduction=reduction, delta=beta) / beta


def with_logits(
    input: Any, target: Any, *, pos_weight: Any = None, weight: Any = None, reduction: str = "mean"
) -> Any:
    """Binary cross entropy of logits."""
    plain = meta.binary_cross_entropy_with_logits
    if pos_weight is None:
        return pair(plain)(input, target, weight=weight, reduction=reduction)
    log_weight = (pos_weight - 1) * target + 1
    loss = (1 - target) * input + log_weight * (-meta.logsigmoid(input))
    return reduced(loss if weight is None else loss * weight, reduction)


def nll(
    input: Any,
    target: Any,
    *,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Any:
    """Negative log-likelihood of classes on axis 1, with a weight per class."""
    axis = 1 if input.ndim > 1 else 0
    classes = input.shape[axis]
    counted = meta.cast(target != ignore_index, input.dtype)
    labels = meta.where(target != ignore_index, target, 0)
    picked = meta.gather(input, axis, meta.expand_dims(labels, axis))
    weights = counted
    if weight is not None:
        weights = counted * meta.take(weight, labels)
    loss = -meta.squeeze(picked, axis) * weights if classes else counted
    # What is left out is 0, even beside an infinity.
    loss = meta.where(target != ignore_index, loss, 0)
    if reduction == "mean":
        return meta.sum(loss) / meta.sum(weights)
    return reduced(loss, reduction)


def cross_entropy(
    input: Any,
    target: Any,
    *,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """`nll` of log_softmax, or the cross entropy of probabilities."""
    axis = 1 if input.ndim > 1 else 0
    logs = meta.log_softmax(input, axis)
    if "int" in target.dtype:
        hard = nll(logs, target, weight=weight, ignore_index=ignore_index, reduction=reduction)
        if label_smoothing == 0:
            return hard
        return smoothed(logs, target, hard, weight, ignore_index, reduction, label_smoothing)
    count = input.shape[axis]
    truth = target * (1 - label_smoothing) + label_smoothing / count
    if weight is not None:
        logs = logs * per_class(weight, input.ndim, axis)
    loss = -meta.sum(logs * truth, axis)
    return meta.sum(loss) / max(loss.size, 1) if reduction == "mean" else reduced(loss, reduction)


def linear_cross_entropy(
    input: Any,
    linear_weight: Any,
    target: Any,
    *,
    linear_bias: Any = None,
    options: Any = None,
    **kwargs: Any,
) -> Any:
    """`cross_entropy` of a fully connected layer, of which the options are torch's to split it."""
    decline_if(linear_weight.ndim != 2, "classes on several axes")
    logits = linear(input, linear_weight, linear_bias)
    return cross_entropy(logits, target, **kwargs)


def per_class(weight: Any, ndim: int, axis: int) -> Any:
    """Return weights of classes so that they broadcast along the axis of classes."""
    return meta.reshape(weight, tuple(weight.size if i == axis else 1 for i in range(ndim)))


def smoothed(
    logs: Any,
    target: Any,
    hard: Any,
    weight: Any,
    ignore_index: int,
    reduction: str,
    smoothing: float,
) -> Any:
    """Return the loss where a part of every label's weight is spread over all classes."""
    axis = 1 if logs.ndim > 1 else 0
    weighted = logs if weight is None else logs * per_class(weight, logs.ndim, axis)
    spread = meta.where(target != ignore_index, -meta.sum(weighted, axis), 0)
    if reduction == "mean":
        labels = meta.where(target != ignore_index, target, 0)
        counted = meta.cast(target != ignore_index, logs.dtype)
        counted = counted if weight is None else counted * meta.take(weight, labels)
        spread = meta.sum(spread) / meta.sum(counted)
    else:
        spread = reduced(spread, reduction)
    return hard * (1 - smoothing) + spread * (smoothing / logs.shape[axis])


def poisson_nll(
    input: Any,
    target: Any,
    *,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Any:
    """Negative log-likelihood of a Poisson distribution."""
    loss = meta.exp(input) - target * input if log_input else input - target * meta.log(input + eps)
    if full:
        above = meta.where(target > 1, target, 2)
        stirling = above * meta.log(above) - above + 0.5 * meta.log(2 * math.pi * above)
        loss = loss + meta.where(target > 1, stirling, 0)
    return reduced(loss, reduction)


def gaussian_nll(
    input: Any,
    target: Any,
    var: Any,
    *,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Any:
    """Negative log-likelihood of a normal distribution."""
    decline_if(isinstance(var, float), "a variance that is a Python number")
    if var.shape != input.shape and input.shape[:-1] == var.shape:
        var = meta.expand_dims(var, -1)
    # The bound below is no part of the gradient.
    bounded = var + meta.maximum(eps - meta.array(var.torch()), 0)
    difference = input - target
    loss = 0.5 * (meta.log(bounded) + difference * difference / bounded)
    return reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)


def hinge_embedding(
    input: Any, target: Any, *, margin: float = 1.0, reduction: str = "mean"
) -> Any:
    """x where the target is 1, max(0, margin - x) where it is -1."""
    near = meta.where(target != 1, meta.maximum(margin - input, 0), 0)
    return reduced(near + meta.where(target != -1, input, 0), reduction)


def cosine_embedding(
    input1: Any, input2: Any, target: Any, *, margin: float = 0.0, reduction: str = "mean"
) -> Any:
    """1 - cosine where the target is 1, max(0, cosine - margin) where it is -1."""
    axis = 1 if target.ndim else 0
    cosine = cosine_similarity(input1, input2, axis, 1e-12)
    apart = meta.maximum(cosine - margin, 0)
    loss = meta.where(target == 1, 1 - cosine, meta.where(target == -1, apart, 0))
    return reduced(loss, reduction)


def margin_ranking(
    input1: Any, input2: Any, target: Any, *, margin: float = 0.0, reduction: str = "mean"
) -> Any:
    """max(0, -target * (x1 - x2) + margin)."""
    return reduced(meta.maximum(-target * (input1 - input2) + margin, 0), reduction)


def soft_margin(input: Any, target: Any, *, reduction: str = "mean") -> Any:
    """log(1 + exp(-target * x))."""
    return reduced(meta.log1p(meta.exp(-target * input)), reduction)


def multilabel_soft_margin(
    input: Any, target: Any, *, weight: Any = None, reduction: str = "mean"
) -> Any:
    """Binary cross entropy of every label, its mean over the classes."""
    loss = -(target * meta.logsigmoid(input) + (1 - target) * meta.logsigmoid(-input))
    loss = loss if weight is None else loss * weight
    return reduced(meta.mean(loss, axis_of(input, -1)), reduction)


def multi_margin(
    input: Any,
    target: Any,
    *,
    p: int = 1,
    margin: float = 1.0,
    weight: Any = None,
    reduction: str = "mean",
) -> Any:
    """How far other classes come within a margin of the right one."""
    x = input if input.ndim == 2 else meta.reshape(input, (1, -1))
    labels = meta.reshape(target, (-1, 1))
    right = meta.gather(x, 1, labels)
    over = meta.maximum(margin - right + x, 0)
    over = over * over if p == 2 else over
    if weight is not None:
        over = over * meta.take(weight, labels)
    own = meta.one_hot(meta.reshape(target, (-1,)), x.shape[1], 1, 0, -1, "bool")
    loss = meta.sum(meta.where(own, 0, over), 1) / x.shape[1]
    return reduced(loss if target.ndim else meta.reshape(loss, ()), reduction)


def triplet(
    anchor: Any,
    positive: Any,
    negative: Any,
    *,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Any:
    """How much nearer the negative is than the positive, beyond a margin."""
    near, far = (pairwise_distance(anchor, other, p, eps) for other in (positive, negative))
    if swap:
        far = meta.minimum(far, pairwise_distance(positive, negative, p, eps))
    return reduced(meta.maximum(near - far + margin, 0), reduction)


def kl_div(input: Any, target: Any, *, reduction: str = "mean", log_target: bool = False) -> Any:
    """Kullback-Leibler divergence of log-probabilities from probabilities."""
    return pair(meta.kl_div)(input, target, reduction=reduction, log_target=log_target)


ADAPTERS = {
    "nn.functional.binary_cross_entropy": pair(meta.binary_cross_entropy),
    "nn.functional.binary_cross_entropy_with_logits": with_logits,
    "nn.functional.cosine_embedding_loss": cosine_embedding,
    "nn.functional.cross_entropy": cross_entropy,
    "nn.functional.gaussian_nll_loss": gaussian_nll,
    "nn.functional.hinge_embedding_loss": hinge_embedding,
    "nn.functional.huber_loss": pair(meta.huber_loss),
    "nn.functional.kl_div": kl_div,
    "nn.functional.l1_loss": pair(meta.l1_loss),
    "nn.functional.linear_cross_entropy": linear_cross_entropy,
    "nn.functional.linear_cross_entropy|chunked": linear_cross_entropy,
    "nn.functional.linear_cross_entropy|chunked_none": linear_cross_entropy,
    "nn.functional.margin_ranking_loss": margin_ranking,
    "nn.functional.mse_loss": pair(meta.mse_loss),
    "nn.functional.multi_margin_loss": multi_margin,
    "nn.functional.multilabel_soft_margin_loss": multilabel_soft_margin,
    "nn.functional.nll_loss": nll,
    "nn.functional.poisson_nll_loss": poisson_nll,
    "nn.functional.smooth_l1_loss": smooth_l1,
    "nn.functional.soft_margin_loss": soft_margin,
    "nn.functional.triplet_margin_loss": triplet,
}
