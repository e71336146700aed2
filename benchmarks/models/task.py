"""`Task`: what is learned, or inferred, in two libraries; `TorchTask`: in torch alone; `Row`: a
task and how it is run. Losses of torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import meta
from meta.model import Model, empty_init

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

    def pair(self) -> tuple[Model, nn.Module]:
        """Return both models with equal parameters, random but the same each time."""
        torch.manual_seed(0)
        theirs = self.theirs()
        with empty_init():
            ours = self.ours()
        ours.load_state_dict(state_of(theirs))
        return ours, theirs


@dataclass(frozen=True)
class Row:
    """A task and how it is run.

    Attributes
    ----------
    training: a step (forward, backward, update), or inference. precision: "float16" or "bfloat16",
    mixed for training and of all arrays for inference, "float32", or "tf32", of float32. optimizer:
    "sgd" or "adamw"; rate, momentum, and whether it is torch's fused one. channels_last: whether
    torch's model and images are laid out so, which is faster. gigabytes: of the device's memory,
    more than one contender takes; how many run at the same time follows from it. time, memory,
    first_call: the goals of models_cuda.py, as shares of the best torch contender's figures; None
    where there is none.
    """

    task: Callable[[bool], TorchTask]
    training: bool
    precision: str
    optimizer: str = "sgd"
    rate: float = 1e-3
    momentum: float = 0.0
    fused: bool = True
    channels_last: bool = False
    gigabytes: float = 5.0
    time: float = 0.9
    memory: float | None = None
    first_call: float | None = None

    @property
    def dtype(self) -> str:
        """What operators compute in."""
        return "float32" if self.precision == "tf32" else self.precision


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and running statistics by name; torch's counters of batches left out."""
    state = model.state_dict()
    return {n: v.detach().clone() for n, v in state.items() if v.is_floating_point()}


def classifier(
    what: str,
    ours: Callable[[], Model],
    theirs: Callable[[], nn.Module],
    inputs: Callable[[], torch.Tensor],
    count: int,
) -> Task:
    """Return the task to learn random labels, of so many classes, of random inputs."""

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(1)
        x = inputs()
        return x, torch.randint(count, x.shape[:1])

    return Task(what, theirs, classes, batch, ours=ours, loss=meta.cross_entropy)


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
