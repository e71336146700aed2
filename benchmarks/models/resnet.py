"""ResNet-18 (He et al., arXiv:1512.03385), 1000 classes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from meta import op
from meta.model import BatchNorm, Conv2d, Linear, Model, Sequential, trace
from models.network import Network

WIDTHS = (64, 128, 256, 512)


class Block(Model):
    """Two 3x3 convolutions beside a shortcut (figure 5, left)."""

    def build(self, inside: int, outside: int, stride: int) -> None:
        """Make the layers; the shortcut has a convolution if shapes differ."""
        self.conv1 = Conv2d(inside, outside, 3, stride=stride, padding=1, bias=False)
        self.bn1 = BatchNorm(outside)
        self.conv2 = Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bn2 = BatchNorm(outside)
        self.shortcut = None
        if stride != 1 or inside != outside:
            convolution = Conv2d(inside, outside, 1, stride=stride, bias=False)
            self.shortcut = Sequential(convolution, BatchNorm(outside))

    @trace
    def forward(self, x: Any) -> Any:
        """Apply the block."""
        y = op.relu(self.bn1(self.conv1(x)))
        shortcut = x if self.shortcut is None else self.shortcut(x)
        return op.relu(op.add(self.bn2(self.conv2(y)), shortcut))


class ResNet18(Model):
    """Two blocks per width."""

    def build(self) -> None:
        """Make the layers."""
        self.conv1, self.bn1 = Conv2d(3, 64, 7, stride=2, padding=3, bias=False), BatchNorm(64)
        self.blocks = Sequential(*(Block(*b) for b in blocks()))
        self.fc = Linear(512, 1000)

    @trace
    def forward(self, x: Any) -> Any:
        """Return the scores of images (n, 3, h, w)."""
        x = op.max_pool2d(op.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = self.blocks(x)
        return self.fc(op.batch_flatten(op.adaptive_avg_pool2d(x, 1)))


def blocks() -> list[tuple[int, int, int]]:
    """Return (channels in, channels out, stride) of every block."""
    found, inside = [], 64
    for width in WIDTHS:
        found += [(inside, width, 1 if width == 64 else 2), (width, width, 1)]
        inside = width
    return found


class TorchBlock(nn.Module):
    """The same with torch."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.shortcut = None
        if stride != 1 or inside != outside:
            convolution = nn.Conv2d(inside, outside, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(outside))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the block."""
        y = torch.relu(self.bn1(self.conv1(x)))
        shortcut = x if self.shortcut is None else self.shortcut(x)
        return torch.relu(self.bn2(self.conv2(y)) + shortcut)


class TorchResNet18(nn.Module):
    """The same with torch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.blocks = nn.Sequential(*(TorchBlock(*b) for b in blocks()))
        self.fc = nn.Linear(512, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of images (n, 3, h, w)."""
        x = torch.max_pool2d(torch.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = self.blocks(x)
        return self.fc(torch.nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


RESNET18 = Network(
    "resnet18",
    "64x64, batch 8",
    ResNet18,
    TorchResNet18,
    lambda: torch.randn(8, 3, 64, 64),
    classes=1000,
)
