"""The demo's network."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.model import BatchNorm, Conv2d, Linear, Model, trace

GRID = 4
"""Images of any size are pooled to at most GRID x GRID features per channel."""


class SmallNet(Model):
    """Two convolutions with batch normalisation, pooling and a linear layer: images to scores.

    After LeNet-5 (LeCun et al., "Gradient-based learning applied to document recognition", 1998).
    """

    def build(self, shape: tuple[int, int, int], classes: int, width: int = 16) -> None:
        """Make the layers for images of ``shape`` (c, h, w), at least 2x2."""
        channels, height, width_pixels = shape
        self.grid = (min(height // 2, GRID), min(width_pixels // 2, GRID))
        self.shrinks = (height // 2, width_pixels // 2) != self.grid
        self.conv1 = Conv2d(channels, width, 3, padding=1, bias=False)
        self.norm1 = BatchNorm(width)
        self.conv2 = Conv2d(width, 2 * width, 3, padding=1, bias=False)
        self.norm2 = BatchNorm(2 * width)
        self.linear = Linear(2 * width * self.grid[0] * self.grid[1], classes)

    @trace
    def forward(self, x: Any) -> Any:
        """Return scores (n, classes) of images (n, c, h, w)."""
        x = op.relu(self.norm1(self.conv1(x)))
        x = op.relu(self.norm2(self.conv2(x)))
        x = op.max_pool2d(x, 2, 2)
        if self.shrinks:
            x = op.adaptive_avg_pool2d(x, self.grid)
        return self.linear(op.batch_flatten(x))
