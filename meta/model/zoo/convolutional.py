"""Convolutional networks: LeNet-5, VGG and residual networks.

LeNet-5 (LeCun, Bottou, Bengio and Haffner, "Gradient-based learning applied to document
recognition", Proceedings of the IEEE, 1998) has ReLU, maximum pooling and a linear classifier, as
it is commonly built today.

Layout and names of VGG (Simonyan and Zisserman, "Very deep convolutional networks for large-scale
image recognition", arXiv:1409.1556) and of residual networks (He et al., "Deep residual learning
for image recognition", arXiv:1512.03385) are torchvision's, whose files of weights load; so do
those of transformers' ``ResNetForImageClassification``. Where a bottleneck halves the resolution,
its 3x3 convolution does, not the first 1x1 as in the paper ("v1.5").
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from meta import op
from meta.base.errors import ArgumentError
from meta.model import init
from meta.model.layers.activation import ReLU
from meta.model.layers.basic import Dropout, Linear, Sequential
from meta.model.layers.conv import Conv2d, initialize_convolutions
from meta.model.layers.norm import BatchNorm
from meta.model.layers.pool import MaxPool2d
from meta.model.model import Model
from meta.model.trace import trace

__all__ = [
    "VGG",
    "LeNet",
    "LeNetConfig",
    "ResNet",
    "ResNetConfig",
    "VGGConfig",
    "resnet18",
    "resnet34",
    "resnet50",
    "vgg11",
    "vgg11_bn",
]


@dataclass(frozen=True)
class LeNetConfig:
    """Square images of ``image_size`` pixels, at least 12, and the number of classes.

    Raises ArgumentError for smaller images.

    >>> config = meta.model.zoo.LeNetConfig(num_classes=3, image_size=12)
    >>> meta.model.zoo.LeNet(config)(meta.zeros((2, 1, 12, 12))).shape
    (2, 3)
    """

    num_classes: int = 10
    num_channels: int = 1
    image_size: int = 28

    def __post_init__(self) -> None:
        if self.image_size < 12:
            raise ArgumentError(
                "these images are too small for LeNet",
                expected="image_size of at least 12",
                found=self.image_size,
            )


class LeNet(Model):
    """Two convolutions with pooling, three linear layers.

    >>> meta.model.zoo.LeNet()(meta.zeros((2, 1, 28, 28))).shape
    (2, 10)
    """

    def build(self, config: LeNetConfig | None = None) -> None:
        """Make the layers; those of 28 x 28 digits without a configuration."""
        config = config or LeNetConfig()
        side = (config.image_size // 2 - 4) // 2
        self.conv1, self.conv2 = Conv2d(config.num_channels, 6, 5, padding=2), Conv2d(6, 16, 5)
        self.fc1, self.fc2 = Linear(16 * side * side, 120), Linear(120, 84)
        self.fc3 = Linear(84, config.num_classes)

    @trace
    def forward(self, x: Any) -> Any:
        """Return scores (n, num_classes) of images (n, num_channels, image_size, image_size)."""
        x = op.max_pool2d(op.relu(self.conv1(x)), 2, 2)
        x = op.max_pool2d(op.relu(self.conv2(x)), 2, 2)
        x = op.relu(self.fc1(op.batch_flatten(x)))
        return self.fc3(op.relu(self.fc2(x)))


GRID = 7
"""Features are pooled to GRID x GRID places, whatever the image's extents."""


@dataclass(frozen=True)
class VGGConfig:
    """The sizes of a VGG; those of VGG-11 (the paper's A) unless given.

    layers: channels of the 3x3 convolutions by stage; each stage halves the resolution. hidden:
    width of the classifier's two inner layers, with ``dropout`` after each.

    >>> config = meta.model.zoo.VGGConfig(layers=((8,), (16, 16)), hidden=32)
    >>> meta.model.zoo.VGG(config).eval()(meta.zeros((2, 3, 32, 32))).shape
    (2, 1000)
    """

    layers: tuple[tuple[int, ...], ...] = ((64,), (128,), (256, 256), (512, 512), (512, 512))
    batch_norm: bool = False
    num_classes: int = 1000
    num_channels: int = 3
    hidden: int = 4096
    dropout: float = 0.5


class VGG(Model):
    """Stages of 3x3 convolutions with ReLU and pooling, and a classifier of three layers.

    >>> layers = ((4,), (4,), (4,), (4,), (4,))
    >>> config = meta.model.zoo.VGGConfig(layers, num_classes=5, hidden=8)
    >>> meta.model.zoo.VGG(config).eval()(meta.zeros((2, 3, 32, 32))).shape
    (2, 5)
    """

    draws_late = True

    def build(self, config: VGGConfig | None = None) -> None:
        """Make the layers; those of VGG-11 without a configuration."""
        config = config or VGGConfig()
        features: list[Model] = []
        inside = config.num_channels
        for stage in config.layers:
            for width in stage:
                features.append(Conv2d(inside, width, 3, padding=1))
                features += [BatchNorm(width), ReLU()] if config.batch_norm else [ReLU()]
                inside = width
            features.append(MaxPool2d(2))
        self.features = Sequential(*features)
        self.classifier = Sequential(
            Linear(inside * GRID * GRID, config.hidden),
            ReLU(),
            Dropout(config.dropout),
            Linear(config.hidden, config.hidden),
            ReLU(),
            Dropout(config.dropout),
            Linear(config.hidden, config.num_classes),
        )
        initialize_convolutions(self)
        for layer in self.classifier:
            if isinstance(layer, Linear):
                init.normal(layer.weight, std=0.01)
                assert layer.bias is not None
                init.zeros(layer.bias)

    @trace
    def forward(self, x: Any) -> Any:
        """Return scores (n, num_classes) of images (n, num_channels, h, w)."""
        x = op.adaptive_avg_pool2d(self.features(x), GRID)
        return self.classifier(op.batch_flatten(x))


def vgg11(**changes: Any) -> VGG:
    """Return a VGG-11; ``changes`` are fields of `VGGConfig`.

    >>> model = meta.model.zoo.vgg11(layers=((2,), (2,)), hidden=4, num_classes=5).eval()
    >>> model(meta.zeros((2, 3, 16, 16))).shape
    (2, 5)
    """
    return VGG(replace(VGGConfig(), **changes))


def vgg11_bn(**changes: Any) -> VGG:
    """Return a VGG-11 with batch normalisation; ``changes`` are fields of `VGGConfig`.

    >>> model = meta.model.zoo.vgg11_bn(layers=((2,), (2,)), hidden=4)
    >>> [name for name in model.state() if "running_mean" in name]
    ['features.1.running_mean', 'features.5.running_mean']
    """
    return VGG(replace(VGGConfig(batch_norm=True), **changes))


@dataclass(frozen=True)
class ResNetConfig:
    """The sizes of a residual network; those of ResNet-18 unless given.

    layers: blocks of each of four stages. bottleneck: blocks of three convolutions, whose result
    has four times the channels, in place of two. width: channels of the first stage; each further
    one doubles them.

    Raises ArgumentError for other than four stages.

    >>> small = meta.model.zoo.ResNetConfig(layers=(1, 1, 1, 1), bottleneck=True, width=8)
    >>> meta.model.zoo.ResNet(small).fc  # 8 * 2**3 channels, four times
    Linear(weight=float32[1000, 256], bias=float32[1000])
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
    """A stem, four stages of blocks, and a classifier of the mean over all places.

    >>> config = meta.model.zoo.ResNetConfig(layers=(1, 1, 1, 1), width=4, num_classes=5)
    >>> meta.model.zoo.ResNet(config).eval()(meta.zeros((2, 3, 32, 32))).shape
    (2, 5)
    """

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

    draws_late = True

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
    """Return a ResNet-18; ``changes`` are fields of `ResNetConfig`.

    >>> model = meta.model.zoo.resnet18(width=4, num_classes=5).eval()
    >>> model(meta.zeros((2, 3, 32, 32))).shape
    (2, 5)
    """
    return ResNet(replace(ResNetConfig(), **changes))


def resnet34(**changes: Any) -> ResNet:
    """Return a ResNet-34; ``changes`` are fields of `ResNetConfig`.

    >>> model = meta.model.zoo.resnet34(width=2, num_classes=5)
    >>> len(model.layer3), model.fc
    (6, Linear(weight=float32[5, 16], bias=float32[5]))
    """
    return ResNet(replace(ResNetConfig(layers=(3, 4, 6, 3)), **changes))


def resnet50(**changes: Any) -> ResNet:
    """Return a ResNet-50; ``changes`` are fields of `ResNetConfig`.

    >>> model = meta.model.zoo.resnet50(width=2, num_classes=5)
    >>> len(model.layer3), model.fc  # of blocks of three convolutions
    (6, Linear(weight=float32[5, 64], bias=float32[5]))
    """
    return ResNet(replace(ResNetConfig(layers=(3, 4, 6, 3), bottleneck=True), **changes))
