"""Convolution layer."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.model.layers.parameter import fan_in_uniform
from meta.model.model import Model
from meta.model.trace import trace
from meta.op.core.check import pair


class Conv2d(Model):
    """Two-dimensional convolution of (n, in_channels, h, w).

    ``w``: (out_channels, in_channels / groups, kernel, kernel); ``b``: (out_channels,) or None.
    """

    def build(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        """Make w and b, both uniform on +-1/sqrt(fan in)."""
        kernel = pair(kernel_size, "kernel_size")
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        fan_in = in_channels // groups * kernel[0] * kernel[1]
        self.w = fan_in_uniform((out_channels, in_channels // groups, *kernel), fan_in)
        self.b = fan_in_uniform((out_channels,), fan_in) if bias else None

    @trace
    def forward(self, x: Any) -> Any:
        """Apply the layer."""
        y = op.conv2d(x, self.w, self.stride, self.padding, self.dilation, self.groups)
        return y if self.b is None else op.bias_add(y, self.b, 1)
