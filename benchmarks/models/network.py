"""`Network`: a model of `meta`, the same of torch, and inputs for both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import meta
from meta import op
from meta.model import Model, trace


@dataclass(frozen=True)
class Network:
    """A network of two libraries.

    ``ours`` and ``theirs`` make it, with parameters of the same names. ``inputs`` makes one batch;
    ``classes`` is the extent of the result's last axis.
    """

    name: str
    what: str
    ours: Callable[[], Model]
    theirs: Callable[[], torch.nn.Module]
    inputs: Callable[[], torch.Tensor]
    classes: int

    def pair(self) -> tuple[Model, torch.nn.Module]:
        """Return both models with equal parameters."""
        torch.manual_seed(0)
        theirs = self.theirs()
        ours = self.ours()
        ours.load_state_dict(state_of(theirs))
        return ours, theirs

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and labels."""
        torch.manual_seed(1)
        x = self.inputs()
        return x, torch.randint(self.classes, x.shape[:1])


def state_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and running statistics by name; torch's counters of batches left out."""
    state = model.state_dict()
    return {n: v.detach().clone() for n, v in state.items() if v.is_floating_point()}


class WithLoss(Model):
    """Cross entropy of a network's result."""

    def build(self, network: Model) -> None:
        """Wrap a network."""
        self.network = network

    @trace
    def forward(self, x: Any, labels: Any) -> meta.ndarray:
        """Return the mean loss of a batch."""
        return op.cross_entropy(self.network(x), labels)
