"""Losses that are 0 beyond a margin, and negative logarithms of likelihoods, composed of operators;
names and arguments as torch's.

``reduction`` is "mean", "sum" or "none". Half precision is computed in float32. Arguments that
belong together have as many axes, of one extent or of 1; others raise TypeInferError.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from meta import op
from meta.base.dtype import is_float
from meta.op.core.check import shapes_compatible
from meta.op.core.function import as_operand, function
from meta.op.loss_reduction import (
    check_broadcast,
    check_broadcastable,
    check_reduction,
    class_indices,
    in_compute_dtype,
    loss_error,
    reduce_loss,
    require_floating,
    result_dtype,
    type_text,
)


def _sign(name: str, target: Any, like: Any) -> Any:
    """Return a target of 1 and -1, which may be integers, as a tensor like another."""
    target = as_operand(target)
    if target.dtype == "bool":
        raise loss_error(name, "the target is 1 or -1", found=type_text(target))
    return target if target.dtype == like.dtype else op.astype(target, like.dtype)


@function
def hinge_embedding_loss(
    prediction: Any, target: Any, margin: float = 1.0, reduction: str = "mean"
) -> Any:
    """Return x where the target is 1, and max(0, margin - x) where it is -1, reduced.

    prediction: x, floating point, as a rule a distance. target: of its shape, numbers.

    >>> distances = meta.array([0.25, 0.25, 2.0])
    >>> meta.hinge_embedding_loss(distances, meta.array([1, -1, -1]), reduction="none").tolist()
    [0.25, 0.75, 0.0]
    """
    name = "hinge_embedding_loss"
    check_reduction(name, reduction)
    (prediction,) = require_floating(name, prediction=prediction)
    x = in_compute_dtype(prediction)
    sign = _sign(name, target, x)
    check_broadcastable(name, prediction=x, target=sign)
    apart = op.where(sign != 1, op.clip(margin - x, 0.0), 0.0)
    return reduce_loss(apart + op.where(sign != -1, x, 0.0), reduction, result_dtype(prediction))


@function
def margin_ranking_loss(
    x1: Any, x2: Any, target: Any, margin: float = 0.0, reduction: str = "mean"
) -> Any:
    """Return ``max(0, -target * (x1 - x2) + margin)``, reduced: 1 asks for x1 above x2, -1 for the
    opposite.

    x1, x2: floating point. target: of their shape, numbers.

    >>> meta.margin_ranking_loss(meta.ones(2), meta.zeros(2), meta.ones(2)).item()
    0.0
    """
    name = "margin_ranking_loss"
    check_reduction(name, reduction)
    x1, x2 = require_floating(name, x1=x1, x2=x2)
    dtype, difference = result_dtype(x1, x2), in_compute_dtype(x1) - in_compute_dtype(x2)
    sign = _sign(name, target, difference)
    check_broadcastable(name, x1=x1, x2=x2, target=sign)
    return reduce_loss(op.clip(margin - sign * difference, 0.0), reduction, dtype)


@function
def cosine_embedding_loss(
    x1: Any, x2: Any, target: Any, margin: float = 0.0, reduction: str = "mean"
) -> Any:
    """Return 1 - cos where the target is 1, and max(0, cos - margin) where it is -1, reduced; cos
    is the cosine of the angle of two vectors.

    x1, x2: (n, d), floating point, with target (n,), numbers; or (d,) with a 0-d target.

    >>> x1, x2 = meta.array([[1.0, 0.0], [1.0, 0.0]]), meta.array([[0.0, 1.0], [2.0, 0.0]])
    >>> meta.cosine_embedding_loss(x1, x2, meta.array([1, -1]), reduction="none").tolist()
    [1.0, 1.0]
    """
    name = "cosine_embedding_loss"
    check_reduction(name, reduction)
    x1, x2 = require_floating(name, x1=x1, x2=x2)
    dtype, a, b = result_dtype(x1, x2), in_compute_dtype(x1), in_compute_dtype(x2)
    sign = _sign(name, target, a)
    check_broadcastable(name, x1=x1, x2=x2)
    if x1.ndim not in (1, 2) or sign.ndim != x1.ndim - 1:
        found = ", ".join(type_text(x) for x in (x1, x2, sign))
        expected = "x1[n, d], x2[n, d], target[n], or x1[d], x2[d], target[]"
        raise loss_error(name, "the target does not fit", expected=expected, found=found)
    least = 1e-12
    squares = (op.sum(a * a, -1) + least) * (op.sum(b * b, -1) + least)
    cosine = op.sum(a * b, -1) / op.sqrt(squares)
    check_broadcastable(name, cosine=cosine, target=sign)
    near = op.where(sign == 1, 1.0 - cosine, 0.0)
    apart = op.where(sign == -1, op.clip(cosine - margin, 0.0), 0.0)
    return reduce_loss(near + apart, reduction, dtype)


def _distance(x1: Any, x2: Any, p: float, eps: float) -> Any:
    """Return the norm of each row of differences; the gradient of one that is 0 is taken as 0."""
    size = op.abs(x1 - x2 + eps)
    if p == math.inf:
        return op.max(size, -1)
    if p == 1:
        return op.sum(size, -1)
    total = op.sum(size * size if p == 2 else op.pow(size, float(p)), -1)
    positive = op.where(total == 0, 1.0, total)
    root = op.sqrt(positive) if p == 2 else op.pow(positive, 1.0 / p)
    return op.where(total == 0, 0.0, root)


@function
def triplet_margin_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Any:
    """Return ``max(0, |anchor - positive| - |anchor - negative| + margin)``, reduced.

    anchor, positive, negative: vectors, (..., d), floating point. p: of the norm, above 0, also
    inf; eps: is added to each difference. swap: the negative's distance is the smaller one of those
    from the anchor and from the positive. Balntas et al., "Learning local feature descriptors with
    triplets", 2016.

    >>> anchor, near, far = meta.zeros((1, 2)), meta.array([[1.0, 0.0]]), meta.array([[0.0, 1.5]])
    >>> round(meta.triplet_margin_loss(anchor, near, far).item(), 4)  # 1 - 1.5 + 1
    0.5
    """
    if not p > 0:
        what = "p is that of a norm"
        raise loss_error("triplet_margin_loss", what, expected="above 0, also inf", found=p)
    return _triplet(
        "triplet_margin_loss",
        (anchor, positive, negative),
        lambda a, b: _distance(a, b, p, eps),
        margin,
        swap,
        reduction,
    )


@function
def triplet_margin_with_distance_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    *,
    distance_function: Callable[[Any, Any], Any] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Any:
    """Return `triplet_margin_loss` for a distance of one's own: a function of two arrays that is
    composed of operators. None is the Euclidean distance.

    >>> distance = lambda a, b: meta.sum(meta.abs(a - b), -1)
    >>> anchor, near, far = meta.zeros((1, 2)), meta.array([[1.0, 0.0]]), meta.array([[1.0, 0.5]])
    >>> loss = meta.triplet_margin_with_distance_loss
    >>> loss(anchor, near, far, distance_function=distance).item()  # 1 - 1.5 + 1
    0.5
    """
    return _triplet(
        "triplet_margin_with_distance_loss",
        (anchor, positive, negative),
        distance_function or (lambda a, b: _distance(a, b, 2.0, 1e-6)),
        margin,
        swap,
        reduction,
    )


def _triplet(
    name: str,
    given: tuple[Any, Any, Any],
    distance: Callable[[Any, Any], Any],
    margin: float,
    swap: bool,
    reduction: str,
) -> Any:
    check_reduction(name, reduction)
    named = dict(zip(("anchor", "positive", "negative"), given, strict=True))
    anchor, positive, negative = require_floating(name, **named)
    check_broadcastable(name, anchor=anchor, positive=positive, negative=negative)
    if anchor.ndim == 0:
        raise loss_error(
            name, "anchor must be vectors", expected="(..., d)", found=type_text(anchor)
        )
    dtype = result_dtype(anchor, positive, negative)
    anchor, positive, negative = (
        in_compute_dtype(anchor),
        in_compute_dtype(positive),
        in_compute_dtype(negative),
    )
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = op.minimum(far, distance(positive, negative))
    return reduce_loss(op.clip(near - far + margin, 0.0), reduction, dtype)


def _rows(name: str, prediction: Any, target: Any, ndim: int) -> tuple[Any, Any]:
    """Return scores as rows, (n, c), and labels with ``ndim`` axes of n."""
    target = as_operand(target)
    found = f"prediction={type_text(prediction)}, target={type_text(target)}"
    if is_float(target.dtype) or target.dtype == "bool":
        raise loss_error(name, "labels must be integers", expected="class indices", found=found)
    if prediction.ndim > 2 or 0 in prediction.shape[-1:]:
        raise loss_error(name, "prediction must be rows", expected="(n, c) or (c,)", found=found)
    if prediction.ndim < 2:
        prediction, target = op.reshape(prediction, (1, -1)), op.reshape(target, (1, -1)[-ndim:])
    fits = target.ndim == ndim and shapes_compatible(target.shape[:1], prediction.shape[:1])
    if not fits or (ndim == 2 and not shapes_compatible(target.shape, prediction.shape)):
        raise loss_error(name, "labels and rows differ", expected="labels of each row", found=found)
    return prediction, target


@function
def multi_margin_loss(
    prediction: Any,
    target: Any,
    p: int = 1,
    margin: float = 1.0,
    weight: Any = None,
    reduction: str = "mean",
) -> Any:
    """Return the sum over the other classes i of ``max(0, margin - x[target] + x[i]) ** p``, over
    the number of classes, reduced.

    prediction: x, (n, c), or (c,) of one row; floating point. target: labels (n,), or one label;
    integers. p: 1 or 2. weight: factors, (c,), of which that of the label counts. Raises
    IndexOutOfRange for a label that is no class: on CUDA with META_CHECK_INDICES only.

    >>> meta.multi_margin_loss(meta.array([[0.5, 0.25, -2.0]]), meta.array([0])).item()  # 0.75 / 3
    0.25
    """
    name = "multi_margin_loss"
    check_reduction(name, reduction)
    if p not in (1, 2):
        raise loss_error(name, "p is an exponent", expected="1 or 2", found=p)
    (x,) = require_floating(name, prediction=prediction)
    rows, labels = _rows(name, in_compute_dtype(x), target, 1)
    picked = op.expand_dims(class_indices(op.astype(labels, "int64"), rows.shape[1]), 1)
    over = op.relu(margin - op.take_along_axis(rows, picked, 1) + rows)
    over = over * over if p == 2 else over
    if weight is not None:
        (weight,) = require_floating(name, weight=weight)
        if not shapes_compatible(weight.shape, rows.shape[1:]):
            expected = f"{list(rows.shape[1:])}, a factor for each class"
            raise loss_error(
                name, "weight does not fit", expected=expected, found=type_text(weight)
            )
        over = over * op.take(op.astype(weight, rows.dtype), picked)
    loss = op.mean(op.where(_class_indices(rows) == picked, 0.0, over), 1)
    single = reduction == "none" and as_operand(target).ndim == 0
    return reduce_loss(op.squeeze(loss, 0) if single else loss, reduction, result_dtype(x))


def _class_indices(rows: Any) -> Any:
    """Return the class of each element of rows."""
    return op.cumsum(op.astype(op.ones_like(rows), "int64"), 1, "int64") - 1


@function
def multilabel_margin_loss(prediction: Any, target: Any, reduction: str = "mean") -> Any:
    """Return the sum over labels j and other classes i of ``max(0, 1 - x[j] + x[i])``, over the
    number of classes, reduced.

    prediction: x, (n, c), or (c,) of one row; floating point. target: of its shape, integers: the
    labels of each row, which end at the first -1. Raises IndexOutOfRange for a label that is no
    class: on CUDA with META_CHECK_INDICES only. Takes memory for n c c elements.

    >>> prediction, labels = meta.array([[0.5, 0.25, 2.0]]), meta.array([[2, -1, 0]])  # only 2
    >>> meta.multilabel_margin_loss(prediction, labels).item()
    0.0
    """
    name = "multilabel_margin_loss"
    check_reduction(name, reduction)
    (x,) = require_floating(name, prediction=prediction)
    rows, labels = _rows(name, in_compute_dtype(x), target, 2)
    labels = op.astype(labels, "int64")
    ended = op.cumsum(op.astype(labels == -1, "int64"), 1, "int64") > 0
    labels = class_indices(op.where(ended, 0, labels), rows.shape[1])
    right = op.expand_dims(op.take_along_axis(rows, labels, 1), 2)
    hot = op.expand_dims(op.where(ended, -1, labels), 2) == op.expand_dims(_class_indices(rows), 1)
    own = op.expand_dims(op.any(hot, 1), 1)
    over = op.relu(1.0 - right + op.expand_dims(rows, 1))
    counts = op.logical_and(op.expand_dims(op.logical_not(ended), 2), op.logical_not(own))
    loss = op.mean(op.sum(op.where(counts, over, 0.0), 1), 1)
    single = reduction == "none" and x.ndim < 2
    return reduce_loss(op.squeeze(loss, 0) if single else loss, reduction, result_dtype(x))


# Negative logarithms of likelihoods.


@function
def gaussian_nll_loss(
    prediction: Any,
    target: Any,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Any:
    """Return ``0.5 * (log(var) + (prediction - target)**2 / var)``, reduced: of a normal
    distribution.

    prediction, target: floating point. var: the variance, a number, or of their shape, perhaps
    without the last axis; below eps it counts as eps, where its gradient is that at eps; a negative
    one makes the loss NaN. full: with the constant ``0.5 * log(2 pi)``. Nix and Weigend,
    "Estimating the mean and variance of the target probability distribution", 1994.

    >>> prediction, target = meta.array([1.0, 2.0]), meta.array([3.0, 2.0])
    >>> meta.gaussian_nll_loss(prediction, target, 1.0, reduction="none").tolist()
    [2.0, 0.0]
    """
    name = "gaussian_nll_loss"
    check_reduction(name, reduction)
    if not eps > 0:
        raise loss_error(name, "eps must be positive", found=eps)
    p, t = require_floating(name, prediction=prediction, target=target)
    dtype = result_dtype(p, t)
    check_broadcastable(name, prediction=p, target=t)
    difference = in_compute_dtype(p) - in_compute_dtype(t)
    if isinstance(var, int | float):
        if var < 0:
            raise loss_error(name, "the variance is negative", found=var)
        bounded: Any = op.full_like(difference, max(float(var), eps))
    else:
        (var,) = require_floating(name, var=var)
        if var.ndim == p.ndim - 1:
            var = op.expand_dims(var, -1)
        check_broadcastable(name, prediction=p, var=var)
        check_broadcast(name, "var", var, tuple(difference.shape))
        dtype, var = result_dtype(p, t, var), in_compute_dtype(var)
        # What is added up to the bound is no part of the gradient.
        bounded = var + _constant(op.clip(eps - var, 0.0))
        bounded = op.where(var < 0, math.nan, bounded)
    loss = 0.5 * (op.log(bounded) + difference * difference / bounded)
    return reduce_loss(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction, dtype)


def _constant(x: Any) -> Any:
    """Return x without its gradient: bits have none."""
    bits = {"float32": "int32", "float64": "int64"}[x.dtype]
    return op.reinterpret(op.reinterpret(x, bits), x.dtype)


@function
def poisson_nll_loss(
    prediction: Any,
    target: Any,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Any:
    """Return ``exp(prediction) - target * prediction``, reduced: of a Poisson distribution.

    prediction: the logarithm of the rate, floating point; without log_input the rate itself, and an
    element is ``prediction - target * log(prediction + eps)``. target: counts, floating point.
    full: with Stirling's approximation of ``log(target!)``,
    ``target * log(target) - target + 0.5 * log(2 pi target)``, where the target is above 1.

    >>> rate, counts = meta.array([1.0, 2.0]), meta.array([3.0, 0.0])
    >>> meta.poisson_nll_loss(rate, counts, log_input=False, reduction="none").tolist()
    [1.0, 2.0]
    """
    name = "poisson_nll_loss"
    check_reduction(name, reduction)
    p, t = require_floating(name, prediction=prediction, target=target)
    check_broadcastable(name, prediction=p, target=t)
    x, counts = in_compute_dtype(p), in_compute_dtype(t)
    loss = op.exp(x) - counts * x if log_input else x - counts * op.log(x + eps)
    if full:
        above = op.where(counts > 1, counts, 2.0)
        stirling = above * op.log(above) - above + 0.5 * op.log(2 * math.pi * above)
        loss = loss + op.where(counts > 1, stirling, 0.0)
    return reduce_loss(loss, reduction, result_dtype(p, t))


@function
def soft_margin_loss(prediction: Any, target: Any, reduction: str = "mean") -> Any:
    """Return ``log(1 + exp(-target * prediction))``, reduced, without overflow.

    prediction: floating point. target: 1 or -1, of its shape; may be integers.

    >>> round(meta.soft_margin_loss(meta.zeros(2), meta.ones(2)).item(), 3)
    0.693
    """
    name = "soft_margin_loss"
    check_reduction(name, reduction)
    (p,) = require_floating(name, prediction=prediction)
    x, target = in_compute_dtype(p), as_operand(target)
    target = target if target.dtype == x.dtype else op.astype(target, x.dtype)
    check_broadcastable(name, prediction=p, target=target)
    return reduce_loss(-op.logsigmoid(target * x), reduction, result_dtype(p))


@function
def multilabel_soft_margin_loss(
    prediction: Any, target: Any, weight: Any = None, reduction: str = "mean"
) -> Any:
    """Return the binary cross entropy of logits, its mean over the last axis, reduced.

    prediction: logits, (..., c), floating point. target: 0 or 1, of its shape; may be integers.
    weight: factors that are broadcast, as a rule one for each class.

    >>> loss = meta.multilabel_soft_margin_loss(meta.zeros((1, 3)), meta.array([[1, 0, 1]]))
    >>> round(loss.item(), 4)  # log 2
    0.6931
    """
    name = "multilabel_soft_margin_loss"
    check_reduction(name, reduction)
    (p,) = require_floating(name, prediction=prediction)
    x, target = in_compute_dtype(p), as_operand(target)
    if p.ndim == 0:
        raise loss_error(name, "prediction has no axis of classes", expected="(..., c)", found="[]")
    target = target if target.dtype == x.dtype else op.astype(target, x.dtype)
    check_broadcastable(name, prediction=p, target=target)
    loss = -(target * op.logsigmoid(x) + (1.0 - target) * op.logsigmoid(-x))
    if weight is not None:
        (weight,) = require_floating(name, weight=weight)
        check_broadcast(name, "weight", weight, tuple(loss.shape))
        loss = loss * op.astype(weight, loss.dtype)
    return reduce_loss(op.mean(loss, -1), reduction, result_dtype(p))


@function
def ctc_loss(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Any:
    """Return -log of the probability that the classes of all time steps, repetitions removed and
    then blanks, are the targets.

    log_probs: logarithms of probabilities, as from `log_softmax`, (T, N, C) or, of one sequence,
    (T, C). targets: (N, S), of which the first ``target_lengths`` count, or all in a row, (sum of
    target_lengths,); of one sequence (S,). input_lengths, target_lengths: (N,), or 0-d of one
    sequence: how many time steps and targets there are. blank: the class that stands for none.
    reduction: "none" gives a loss for each sequence, "sum" their sum, and "mean" the mean of losses
    divided by target lengths (at least 1). zero_infinity: the loss of targets that do not fit into
    the time steps is 0 instead of infinite, and so is its gradient.

    Graves et al., "Connectionist temporal classification", 2006; arguments as torch's. Raises
    TypeInferError for other types or reductions, and IndexOutOfRange as `meta.op.ctc_losses`.

    >>> scores, lengths = meta.log_softmax(meta.zeros((5, 1, 3)), axis=-1), meta.array([5])
    >>> meta.ctc_loss(scores, meta.array([[1, 2]]), lengths, meta.array([2])).shape
    ()
    """
    check_reduction("ctc_loss", reduction)
    log_probs, targets = as_operand(log_probs), as_operand(targets)
    lengths = as_operand(input_lengths), as_operand(target_lengths)
    single = log_probs.ndim == 2
    if single:
        log_probs, targets = op.expand_dims(log_probs, 1), op.reshape(targets, (1, -1))
        lengths = op.reshape(lengths[0], (1,)), op.reshape(lengths[1], (1,))
    losses = op.ctc_losses(log_probs, targets, *lengths, blank, zero_infinity)
    if reduction == "mean":
        return op.mean(losses / op.astype(op.maximum(lengths[1], 1), losses.dtype), (0,))
    if reduction == "sum":
        return op.sum(losses, (0,))
    return op.squeeze(losses, 0) if single else losses
