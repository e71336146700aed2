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

    ``weight``: (out_channels, in_channels / groups, kernel, kernel); ``bias``: (out_channels,) or
    None.
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
        """Make weight and bias, both uniform on +-1/sqrt(fan in)."""
        kernel = pair(kernel_size, "kernel_size")
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        fan_in = in_channels // groups * kernel[0] * kernel[1]
        self.weight = fan_in_uniform((out_channels, in_channels // groups, *kernel), fan_in)
        self.bias = fan_in_uniform((out_channels,), fan_in) if bias else None

    @trace
    def forward(self, x: Any) -> Any:
        """Apply the layer."""
        y = op.conv2d(x, self.weight, self.stride, self.padding, self.dilation, self.groups)
        return y if self.bias is None else op.bias_add(y, self.bias, 1)
