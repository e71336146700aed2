"""LeNet-5 (LeCun, Bottou, Bengio and Haffner, "Gradient-based learning applied to document
recognition", Proceedings of the IEEE, 1998), with ReLU, maximum pooling and a linear classifier, as
it is commonly built today.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meta import op
from meta.base.errors import ArgumentError
from meta.model.layers.basic import Linear
from meta.model.layers.conv import Conv2d
from meta.model.model import Model
from meta.model.trace import trace

__all__ = ["LeNet", "LeNetConfig"]


@dataclass(frozen=True)
class LeNetConfig:
    """Square images of ``image_size`` pixels, at least 12, and the number of classes."""

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
    """Two convolutions with pooling, three linear layers."""

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
