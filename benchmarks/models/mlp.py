"""A multi-layer perceptron for images of 28 x 28."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from meta import op
from meta.model import Linear, Model, trace
from models.task import classifier

SIZES = (784, 512, 512, 10)


class MultiLayer(Model):
    """Linear layers with ReLU between them."""

    def build(self) -> None:
        """Make the layers."""
        self.fc1, self.fc2, self.fc3 = (Linear(*pair) for pair in pairwise(SIZES))

    @trace
    def forward(self, x: Any) -> Any:
        """Return the scores of rows of 784."""
        return self.fc3(op.relu(self.fc2(op.relu(self.fc1(x)))))


class TorchMultiLayer(torch.nn.Module):
    """The same with torch."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = (torch.nn.Linear(*pair) for pair in pairwise(SIZES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of rows of 784."""
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


MLP = classifier(
    "784-512-512-10, batch 64",
    MultiLayer,
    TorchMultiLayer,
    lambda: torch.randn(64, 784),
    count=10,
)
