"""LeNet-5 for images of 28 x 28: that of `meta.model.zoo`."""

from __future__ import annotations

import torch

from meta.model.zoo import LeNet
from models.task import classifier


class TorchLeNet(torch.nn.Module):
    """The same network with torch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = torch.nn.Conv2d(1, 6, 5, padding=2), torch.nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2 = torch.nn.Linear(400, 120), torch.nn.Linear(120, 84)
        self.fc3 = torch.nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of images (n, 1, 28, 28)."""
        x = torch.max_pool2d(torch.relu(self.conv1(x)), 2, 2)
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2, 2)
        x = torch.relu(self.fc1(x.flatten(1)))
        return self.fc3(torch.relu(self.fc2(x)))


LENET = classifier(
    "28x28, batch 64",
    LeNet,
    TorchLeNet,
    lambda: torch.randn(64, 1, 28, 28),
    count=10,
)
