"""Losses of elements with what a call takes beyond the operator: weights, and `smooth_l1_loss`."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.op.core.check import shapes_compatible
from meta.op.core.op import ComposedOp
from meta.op.loss import DEFINED, huber_loss, smooth_l1_loss
from meta.op.loss_reduction import (
    check_broadcast,
    check_reduction,
    in_compute_dtype,
    loss_error,
    reduce_loss,
    require_floating,
    result_dtype,
    type_text,
)


def _by_weight(base: ComposedOp) -> None:
    """Let a loss take weights, by whose sum a mean is divided."""

    @base.calls
    def call(prediction: Any, target: Any, reduction: str = "mean", *, weight: Any = None) -> Any:
        check_reduction(base.name, reduction)
        if weight is None:
            return base.plain(prediction, target, reduction)
        p, t, w = require_floating(base.name, prediction=prediction, target=target, weight=weight)
        _check_weight(base.name, w, t)
        dtype = result_dtype(p, t)
        loss = base.plain(in_compute_dtype(p), in_compute_dtype(t), "none") * in_compute_dtype(w)
        if reduction == "mean":
            return reduce_loss(op.sum(loss) / op.sum(in_compute_dtype(w)), "none", dtype)
        return reduce_loss(loss, reduction, dtype)


def _check_weight(name: str, weight: Any, target: Any) -> None:
    if not shapes_compatible(weight.shape, target.shape):
        expected = f"the target's shape, {list(target.shape)}"
        raise loss_error(name, "weight does not fit", expected=expected, found=type_text(weight))


_by_weight(DEFINED["mse_loss"])
_by_weight(DEFINED["l1_loss"])


@huber_loss.calls
def _huber_loss(
    prediction: Any,
    target: Any,
    reduction: str = "mean",
    delta: float = 1.0,
    *,
    weight: Any = None,
) -> Any:
    check_reduction("huber_loss", reduction)
    if weight is None:
        return huber_loss.plain(prediction, target, reduction, delta)
    p, t, w = require_floating("huber_loss", prediction=prediction, target=target, weight=weight)
    _check_weight("huber_loss", w, t)
    loss = huber_loss.plain(
        in_compute_dtype(p), in_compute_dtype(t), "none", delta
    ) * in_compute_dtype(w)
    return reduce_loss(loss, reduction, result_dtype(p, t))


@smooth_l1_loss.calls
def _smooth_l1_loss(
    prediction: Any, target: Any, reduction: str = "mean", beta: float = 1.0
) -> Any:
    check_reduction("smooth_l1_loss", reduction)
    if reduction == "mean" and beta == 1:
        return smooth_l1_loss.plain(prediction, target)
    if beta < 0:
        raise loss_error("smooth_l1_loss", "beta must not be negative", found=beta)
    p, t = require_floating("smooth_l1_loss", prediction=prediction, target=target)
    _check_pair("smooth_l1_loss", p, t)
    if beta == 0:
        return op.l1_loss(p, t, reduction)
    loss = huber_loss.plain(
        in_compute_dtype(p), in_compute_dtype(t), reduction, float(beta)
    ) / float(beta)
    return reduce_loss(loss, "none", result_dtype(p, t))


def _check_pair(name: str, prediction: Any, target: Any) -> None:
    if not shapes_compatible(prediction.shape, target.shape):
        found = f"prediction={type_text(prediction)}, target={type_text(target)}"
        raise loss_error(name, "prediction and target differ", expected="one shape", found=found)


def _elementwise(name: str, prediction: Any, target: Any, **factors: Any) -> list[Any]:
    """Return the arguments of a binary cross entropy; a factor that is not given is None."""
    given = {n: x for n, x in factors.items() if x is not None}
    p, t, *rest = require_floating(name, prediction=prediction, target=target, **given)
    _check_pair(name, p, t)
    for argument, x in zip(given, rest, strict=True):
        check_broadcast(name, argument, x, p.shape)
    found = dict(zip(given, rest, strict=True))
    return [p, t, *(found.get(n) for n in factors)]


@DEFINED["binary_cross_entropy"].calls
def _binary_cross_entropy(
    prediction: Any, target: Any, reduction: str = "mean", *, weight: Any = None
) -> Any:
    name = "binary_cross_entropy"
    check_reduction(name, reduction)
    if weight is None:
        return DEFINED[name].plain(prediction, target, reduction)
    p, t, w = _elementwise(name, prediction, target, weight=weight)
    loss = DEFINED[name].plain(in_compute_dtype(p), in_compute_dtype(t), "none") * in_compute_dtype(
        w
    )
    return reduce_loss(loss, reduction, result_dtype(p, t))


@DEFINED["binary_cross_entropy_with_logits"].calls
def _binary_cross_entropy_with_logits(
    prediction: Any,
    target: Any,
    reduction: str = "mean",
    *,
    weight: Any = None,
    pos_weight: Any = None,
) -> Any:
    name = "binary_cross_entropy_with_logits"
    check_reduction(name, reduction)
    if weight is None and pos_weight is None:
        return DEFINED[name].plain(prediction, target, reduction)
    p, t, w, positive = _elementwise(name, prediction, target, weight=weight, pos_weight=pos_weight)
    x, truth, dtype = in_compute_dtype(p), in_compute_dtype(t), result_dtype(p, t)
    if positive is None:
        loss = DEFINED[name].plain(x, truth, "none")
    else:
        factor = (in_compute_dtype(positive) - 1.0) * truth + 1.0
        loss = (1.0 - truth) * x - factor * op.logsigmoid(x)
    return reduce_loss(loss if w is None else loss * in_compute_dtype(w), reduction, dtype)
