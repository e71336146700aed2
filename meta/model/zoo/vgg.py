"""VGG (Simonyan and Zisserman, "Very deep convolutional networks for large-scale image
recognition", arXiv:1409.1556), without or with batch normalisation.

Layout and names are torchvision's, whose files of weights load.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from meta import op, random
from meta.model.layers.activation import ReLU
from meta.model.layers.basic import Dropout, Linear, Sequential
from meta.model.layers.conv import Conv2d, initialize_convolutions
from meta.model.layers.norm import BatchNorm
from meta.model.layers.pool import MaxPool2d
from meta.model.model import Model
from meta.model.trace import trace

__all__ = ["VGG", "VGGConfig", "vgg11", "vgg11_bn"]

GRID = 7
"""Features are pooled to GRID x GRID places, whatever the image's extents."""


@dataclass(frozen=True)
class VGGConfig:
    """The sizes of a VGG; those of VGG-11 (the paper's A) unless given.

    layers: channels of the 3x3 convolutions by stage; each stage halves the resolution. hidden:
    width of the classifier's two inner layers, with ``dropout`` after each.
    """

    layers: tuple[tuple[int, ...], ...] = ((64,), (128,), (256, 256), (512, 512), (512, 512))
    batch_norm: bool = False
    num_classes: int = 1000
    num_channels: int = 3
    hidden: int = 4096
    dropout: float = 0.5


class VGG(Model):
    """Stages of 3x3 convolutions with ReLU and pooling, and a classifier of three layers."""

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
                layer.weight.update(random.normal(layer.weight.shape, mean=0.0, std=0.01))
                assert layer.bias is not None
                layer.bias.tensor.zero_()

    @trace
    def forward(self, x: Any) -> Any:
        """Return scores (n, num_classes) of images (n, num_channels, h, w)."""
        x = op.adaptive_avg_pool2d(self.features(x), GRID)
        return self.classifier(op.batch_flatten(x))


def vgg11(**changes: Any) -> VGG:
    """Return a VGG-11; ``changes`` are fields of `VGGConfig`."""
    return VGG(replace(VGGConfig(), **changes))


def vgg11_bn(**changes: Any) -> VGG:
    """Return a VGG-11 with batch normalisation; ``changes`` are fields of `VGGConfig`."""
    return VGG(replace(VGGConfig(batch_norm=True), **changes))
