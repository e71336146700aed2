"""Converters of losses."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.frontend.relax.registry import relax


@relax("nn.cross_entropy_with_logits", op.multiply, op.sum)
def cross_entropy_with_logits(predictions: Any, labels: Any) -> Any:
    """``-sum(predictions * labels)`` per example; in spite of its name there is no softmax."""
    total = op.negative(op.sum(op.multiply(predictions, labels)))
    return op.divide(total, float(predictions.shape[0])) if predictions.ndim > 1 else total


@relax("nn.nll_loss", op.gather, op.take)
def nll_loss(
    predictions: Any, targets: Any, weights: Any = None, *, reduction: str, ignore_index: int
) -> Any:
    """``-weights[t] * predictions[n, t, ...]``, 0 where t is ``ignore_index``; "mean" divides by
    the sum of the weights.
    """
    batched = predictions.ndim > 1
    axis = 1 if batched else 0
    ignored = op.equal(targets, ignore_index)
    safe = op.where(ignored, op.zeros_like(targets), targets)
    picked = op.gather(predictions, axis, op.expand_dims(safe, axis))
    picked = op.squeeze(picked, axis)
    if weights is None:
        weight = op.ones_like(picked)
    else:
        weight = op.take(weights, safe, 0)
    weight = op.where(ignored, op.zeros_like(weight), weight)
    loss = op.negative(op.multiply(picked, weight))
    if reduction == "none":
        return loss
    total = op.sum(loss)
    return op.divide(total, op.sum(weight)) if reduction == "mean" else total
