"""Converters of losses."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.relay.registry import relay


def _mean_over_rows(x: Any) -> Any:
    return -op.mean(op.sum(x, axis=0, exclude=True))


@relay("nn.cross_entropy", op.log, op.sum, op.mean)
def cross_entropy(x: Any, y: Any) -> Any:
    """-sum(y * log(x)) per row, of probabilities x and y; the mean over the rows."""
    return _mean_over_rows(op.log(x) * y)


@relay("nn.cross_entropy_with_logits", op.sum, op.mean)
def cross_entropy_with_logits(x: Any, y: Any) -> Any:
    """-sum(y * x) per row; the mean over the rows. TVM takes logarithms of probabilities as x, in
    spite of the name: it normalises nothing.
    """
    return _mean_over_rows(x * y)


@relay("nn.nll_loss", op.gather, op.take)
def nll_loss(
    predictions: Any, targets: Any, weights: Any, *, reduction: str, ignore_index: int
) -> Any:
    """-weights[t] * predictions[n, t, ...] at every target t that is not ``ignore_index``; as it
    is ("none"), added up ("sum"), or divided by the sum of the weights that took part ("mean").
    """
    if reduction not in ("none", "sum", "mean"):
        raise Unconvertible(f"reduction is one of none, sum, mean; not {reduction!r}")
    counts = op.not_equal(targets, ignore_index)
    # An ignored target may name no class at all.
    classes = op.where(counts, targets, op.zeros_like(targets))
    if predictions.ndim == 1:
        picked = op.take(predictions, classes)
    else:
        picked = op.squeeze(op.gather(predictions, 1, op.expand_dims(classes, 1)), 1)
    weight = op.where(counts, op.take(weights, classes), 0.0)
    loss = op.where(counts, -picked * weight, 0.0)
    if reduction == "none":
        return loss
    total = op.sum(loss)
    return total / op.sum(weight) if reduction == "mean" else total
