"""`Task`: what is learned, or inferred, in two libraries; and losses in torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from meta.model import Model


@dataclass(frozen=True)
class Task:
    """What is learned, in two libraries: models with parameters of the same names, losses of a
    result and targets, and one batch of inputs and targets, on the CPU.
    """

    what: str
    ours: Callable[[], Model]
    loss: Callable[[Any, Any], Any]
    theirs: Callable[[], nn.Module]
    their_loss: Callable[[Any, Any], torch.Tensor]
    batch: Callable[[], tuple[torch.Tensor, torch.Tensor]]


def scores(output: Any) -> torch.Tensor:
    """Return the scores of a torch model's result, which transformers puts into an object."""
    return getattr(output, "logits", output)


def classes(output: Any, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of (..., classes) and labels (...); -100 is not counted."""
    found = scores(output)
    return cross_entropy(found.reshape(-1, found.shape[-1]), labels.reshape(-1))


def successors(output: Any, rows: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of each token's successor."""
    return classes(scores(output)[:, :-1], rows[:, 1:])
