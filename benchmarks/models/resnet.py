"""ResNet-18, 1000 classes: that of `meta.model.zoo`."""

from __future__ import annotations

import torch
from torch import nn

from meta.model.zoo import resnet18
from models.task import classifier


class TorchBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.downsample = None
        if stride != 1 or inside != outside:
            convolution = nn.Conv2d(inside, outside, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(convolution, nn.BatchNorm2d(outside))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the block."""
        y = torch.relu(self.bn1(self.conv1(x)))
        shortcut = x if self.downsample is None else self.downsample(x)
        return torch.relu(self.bn2(self.conv2(y)) + shortcut)


def stage(inside: int, outside: int) -> nn.Sequential:
    """Return two blocks; the first halves the resolution, but where the width stays."""
    stride = 1 if inside == outside else 2
    return nn.Sequential(TorchBlock(inside, outside, stride), TorchBlock(outside, outside, 1))


class TorchResNet18(nn.Module):
    """The same network with torch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1, self.layer2 = stage(64, 64), stage(64, 128)
        self.layer3, self.layer4 = stage(128, 256), stage(256, 512)
        self.fc = nn.Linear(512, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of images (n, 3, h, w)."""
        x = torch.max_pool2d(torch.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


RESNET18 = classifier(
    "64x64, batch 8",
    resnet18,
    TorchResNet18,
    lambda: torch.randn(8, 3, 64, 64),
    count=1000,
)
