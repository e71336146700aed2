"""`Task`: what is learned, or inferred, in two libraries; `TorchTask`: in torch alone. Losses of
torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from meta.model import Model

Inputs = torch.Tensor | dict[str, torch.Tensor]
"""What a model is called with: one tensor, or several by keyword."""


@dataclass(frozen=True)
class TorchTask:
    """What a model of torch learns: the loss of a result and targets, and one batch of inputs and
    targets, on the CPU.
    """

    what: str
    theirs: Callable[[], nn.Module]
    their_loss: Callable[[Any, Any], torch.Tensor]
    batch: Callable[[], tuple[Inputs, torch.Tensor]]


@dataclass(frozen=True)
class Task(TorchTask):
    """The same with a model of `meta` beside it, whose parameters have the same names. The batch is
    one tensor of inputs.
    """

    ours: Callable[[], Model]
    loss: Callable[[Any, Any], Any]


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
