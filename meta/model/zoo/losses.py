"""Losses of language models: of the scores that a model returns and of the labels."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.model.zoo.transformer import device_of

IGNORED = -100
"""The label of a token that is not counted."""


def masked_lm_loss(logits: Any, labels: Any) -> Any:
    """Return the mean cross entropy of the tokens that are to be predicted.

    logits: [n, steps, vocabulary]. labels: integers [n, steps]; -100 where nothing is predicted.
    Result: shape (); NaN if no token is.
    """
    rows = op.reshape(logits, (-1, logits.shape[-1]))
    return op.cross_entropy(op.reshape(labels, (-1,)), rows)


def causal_lm_loss(logits: Any, labels: Any) -> Any:
    """Return the mean cross entropy of each token's successor: `masked_lm_loss` of shifted labels.

    logits: [n, steps, vocabulary]. labels: [n, steps], as a rule the model's own input; -100 for a
    token that is not counted as a successor.
    """
    n, steps = labels.shape
    last = op.full(IGNORED, (n, 1), labels.dtype, device_of(labels))
    following = op.strided_slice(labels, (0, 1), (n, steps))
    return masked_lm_loss(logits, op.concatenate((following, last), 1))
