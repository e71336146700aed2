"""Residual networks (He et al., "Deep residual learning for image recognition", arXiv:1512.03385).

Layout and names are torchvision's, whose files of weights load; so do those of transformers'
``ResNetForImageClassification``. Where a bottleneck halves the
resolution, its 3x3 convolution does, not the first 1x1 as in the paper ("v1.5").
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from meta import op
from meta.base.errors import ArgumentError
from meta.model.layers.basic import Linear, Sequential
from meta.model.layers.conv import Conv2d, initialize_convolutions
from meta.model.layers.norm import BatchNorm
from meta.model.model import Model
from meta.model.trace import trace

__all__ = ["ResNet", "ResNetConfig", "resnet18", "resnet34", "resnet50"]


@dataclass(frozen=True)
class ResNetConfig:
    """The sizes of a residual network; those of ResNet-18 unless given.

    layers: blocks of each of four stages. bottleneck: blocks of three convolutions, whose result
    has four times the channels, in place of two. width: channels of the first stage; each further
    one doubles them.
    """

    layers: tuple[int, int, int, int] = (2, 2, 2, 2)
    bottleneck: bool = False
    num_classes: int = 1000
    num_channels: int = 3
    width: int = 64

    def __post_init__(self) -> None:
        if len(self.layers) != 4 or min(self.layers) < 1:
            raise ArgumentError(
                "a residual network has four stages",
                expected="layers=(a, b, c, d), none below 1",
                found=self.layers,
            )


class BasicBlock(Model):
    """Two 3x3 convolutions beside a shortcut (figure 5, left)."""

    def build(self, inside: int, width: int, stride: int) -> None:
        """Make the layers; the shortcut has a convolution if the shapes differ."""
        self.conv1 = Conv2d(inside, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = BatchNorm(width)
        self.conv2 = Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = BatchNorm(width)
        self.downsample = _shortcut(inside, width, stride)

    @trace
    def forward(self, x: Any) -> Any:
        """Apply the block to (n, inside, h, w)."""
        y = op.relu(self.bn1(self.conv1(x)))
        shortcut = x if self.downsample is None else self.downsample(x)
        return op.relu(op.add(self.bn2(self.conv2(y)), shortcut))


class Bottleneck(Model):
    """A 3x3 convolution between two of 1x1 beside a shortcut (figure 5, right)."""

    def build(self, inside: int, width: int, stride: int) -> None:
        """Make the layers; the shortcut has a convolution if the shapes differ."""
        outside = 4 * width
        self.conv1 = Conv2d(inside, width, 1, bias=False)
        self.bn1 = BatchNorm(width)
        self.conv2 = Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = BatchNorm(width)
        self.conv3 = Conv2d(width, outside, 1, bias=False)
        self.bn3 = BatchNorm(outside)
        self.downsample = _shortcut(inside, outside, stride)

    @trace
    def forward(self, x: Any) -> Any:
        """Apply the block to (n, inside, h, w)."""
        y = op.relu(self.bn1(self.conv1(x)))
        y = op.relu(self.bn2(self.conv2(y)))
        shortcut = x if self.downsample is None else self.downsample(x)
        return op.relu(op.add(self.bn3(self.conv3(y)), shortcut))


def _shortcut(inside: int, outside: int, stride: int) -> Sequential | None:
    if stride == 1 and inside == outside:
        return None
    return Sequential(Conv2d(inside, outside, 1, stride=stride, bias=False), BatchNorm(outside))


def _next(name: str) -> Callable[[re.Match[str]], str]:
    """Return a replacement by ``name`` with the number, one higher, of the match's last group."""
    return lambda m: f"{m.group(1)}{name}{int(m.group(2)) + 1}."


class ResNet(Model):
    """A stem, four stages of blocks, and a classifier of the mean over all places."""

    renamed = (  # of transformers
        (r"^resnet\.embedder\.embedder\.convolution\.", "conv1."),
        (r"^resnet\.embedder\.embedder\.normalization\.", "bn1."),
        (r"^()resnet\.encoder\.stages\.(\d+)\.layers\.", _next("layer")),
        (r"^(layer\d+\.\d+\.)layer\.(\d+)\.convolution\.", _next("conv")),
        (r"^(layer\d+\.\d+\.)layer\.(\d+)\.normalization\.", _next("bn")),
        (r"^(layer\d+\.\d+\.)shortcut\.convolution\.", r"\1downsample.0."),
        (r"^(layer\d+\.\d+\.)shortcut\.normalization\.", r"\1downsample.1."),
        (r"^classifier\.1\.", "fc."),
    )

    def build(self, config: ResNetConfig | None = None) -> None:
        """Make the layers; those of ResNet-18 without a configuration."""
        config = config or ResNetConfig()
        block = Bottleneck if config.bottleneck else BasicBlock
        widths = [config.width * 2**i for i in range(4)]
        outside = [w * 4 if config.bottleneck else w for w in widths]
        self.conv1 = Conv2d(config.num_channels, config.width, 7, stride=2, padding=3, bias=False)
        self.bn1 = BatchNorm(config.width)
        stages = []
        for i, (before, after) in enumerate(pairwise([config.width, *outside])):
            first = block(before, widths[i], 1 if i == 0 else 2)
            more = (block(after, widths[i], 1) for _ in range(config.layers[i] - 1))
            stages.append(Sequential(first, *more))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.fc = Linear(outside[-1], config.num_classes)
        initialize_convolutions(self)

    @trace
    def forward(self, x: Any) -> Any:
        """Return scores (n, num_classes) of images (n, num_channels, h, w)."""
        x = op.max_pool2d(op.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
        return self.fc(op.batch_flatten(op.adaptive_avg_pool2d(x, 1)))


def resnet18(**changes: Any) -> ResNet:
    """Return a ResNet-18; ``changes`` are fields of `ResNetConfig`."""
    return ResNet(replace(ResNetConfig(), **changes))


def resnet34(**changes: Any) -> ResNet:
    """Return a ResNet-34; ``changes`` are fields of `ResNetConfig`."""
    return ResNet(replace(ResNetConfig(layers=(3, 4, 6, 3)), **changes))


def resnet50(**changes: Any) -> ResNet:
    """Return a ResNet-50; ``changes`` are fields of `ResNetConfig`."""
    return ResNet(replace(ResNetConfig(layers=(3, 4, 6, 3), bottleneck=True), **changes))
