"""Convolution layers, over one to three spatial axes of (n, channels, ...)."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from meta import op
from meta.base.errors import ArgumentError
from meta.model import init
from meta.model.layers.basic import fan_in_uniform
from meta.model.model import Model
from meta.model.trace import trace
from meta.op.core import Op
from meta.op.core.check import pair

__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]

Extents = int | tuple[int, ...]


class Convolution(Model):
    """Base of convolutions over ``axes`` spatial axes; see their ``operator``.

    ``weight``: (out_channels, in_channels / groups, *kernel); ``bias``: (out_channels,) or None.
    """

    operator: ClassVar[Op]
    axes: ClassVar[int]

    def build(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Extents,
        stride: Extents = 1,
        padding: Extents | str = 0,
        dilation: Extents = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        """Make weight and bias, both uniform on +-1/sqrt(fan in).

        padding: zeros on either side of each axis; "valid" for none, or "same", with stride 1, for
        a result of the input's extents.
        """
        kernel = pair(kernel_size, "kernel_size", self.axes)
        self.stride, self.dilation, self.groups = stride, dilation, groups
        if isinstance(padding, str):
            padding = _named_padding(padding, kernel, pair(dilation, "dilation", self.axes), stride)
        self.padding = padding
        _require_groups(groups, in_channels, out_channels)
        shape = (out_channels, in_channels // groups, *kernel)
        self.weight, self.bias = _weight_and_bias(shape, out_channels, bias)

    @trace
    def forward(self, x: Any) -> Any:
        """Apply the layer."""
        window = (self.stride, self.padding, self.dilation, self.groups)
        return self.operator(x, self.weight, self.bias, *window)


class Conv1d(Convolution):
    """Convolution of (n, in_channels, w).

    >>> meta.model.Conv1d(3, 8, 5, padding=2)(meta.ones((1, 3, 10))).shape
    (1, 8, 10)
    """

    operator, axes = op.conv1d, 1


class Conv2d(Convolution):
    """Convolution of (n, in_channels, h, w).

    >>> meta.model.Conv2d(3, 16, 3, stride=2, padding=1)(meta.ones((1, 3, 32, 32))).shape
    (1, 16, 16, 16)
    """

    operator, axes = op.conv2d, 2


class Conv3d(Convolution):
    """Convolution of (n, in_channels, d, h, w).

    >>> meta.model.Conv3d(1, 4, 2)(meta.ones((1, 1, 3, 4, 5))).shape
    (1, 4, 2, 3, 4)
    """

    operator, axes = op.conv3d, 3


class TransposedConvolution(Model):
    """Base of transposed convolutions over ``axes`` spatial axes; see their ``operator``.

    ``weight``: (in_channels, out_channels / groups, *kernel); ``bias``: (out_channels,) or None.
    """

    operator: ClassVar[Op]
    axes: ClassVar[int]

    def build(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Extents,
        stride: Extents = 1,
        padding: Extents = 0,
        output_padding: Extents = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Extents = 1,
    ) -> None:
        """Make weight and bias, both uniform on +-1/sqrt(fan in) of the convolution whose gradient
        it is.
        """
        kernel = pair(kernel_size, "kernel_size", self.axes)
        self.stride, self.padding, self.output_padding = stride, padding, output_padding
        self.dilation, self.groups = dilation, groups
        _require_groups(groups, in_channels, out_channels)
        shape = (in_channels, out_channels // groups, *kernel)
        self.weight, self.bias = _weight_and_bias(shape, out_channels, bias)

    @trace
    def forward(self, x: Any) -> Any:
        """Apply the layer."""
        window = (self.stride, self.padding, self.output_padding, self.groups, self.dilation)
        return self.operator(x, self.weight, self.bias, *window)


class ConvTranspose1d(TransposedConvolution):
    """Transposed convolution of (n, in_channels, w).

    >>> meta.model.ConvTranspose1d(4, 2, 2, stride=2)(meta.ones((1, 4, 5))).shape
    (1, 2, 10)
    """

    operator, axes = op.conv_transpose1d, 1


class ConvTranspose2d(TransposedConvolution):
    """Transposed convolution of (n, in_channels, h, w).

    >>> meta.model.ConvTranspose2d(16, 3, 2, stride=2)(meta.ones((1, 16, 8, 8))).shape
    (1, 3, 16, 16)
    """

    operator, axes = op.conv_transpose2d, 2


class ConvTranspose3d(TransposedConvolution):
    """Transposed convolution of (n, in_channels, d, h, w).

    >>> meta.model.ConvTranspose3d(4, 2, 2, stride=2)(meta.ones((1, 4, 2, 3, 4))).shape
    (1, 2, 4, 6, 8)
    """

    operator, axes = op.conv_transpose3d, 3


def _require_groups(groups: int, in_channels: int, out_channels: int) -> None:
    if groups < 1 or in_channels % groups or out_channels % groups:
        raise ArgumentError(
            "groups must divide the channels",
            expected=f"a divisor of {in_channels} and {out_channels}",
            found=groups,
        )


def _weight_and_bias(shape: tuple[int, ...], channels: int, bias: bool) -> tuple[Any, Any]:
    fan_in = math.prod(shape[1:])
    return fan_in_uniform(shape, fan_in), fan_in_uniform((channels,), fan_in) if bias else None


def _named_padding(
    name: str, kernel: tuple[int, ...], dilation: tuple[int, ...], stride: Extents
) -> Extents:
    """Return the padding before each axis, then after each, that "same" or "valid" stands for."""
    if name == "valid":
        return 0
    if name != "same" or any(s != 1 for s in pair(stride, "stride", len(kernel))):
        raise ArgumentError(
            "this padding is not known",
            expected='numbers, "valid", or "same" with stride 1',
            found=f"{name!r} with stride {stride}",
        )
    total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    return (*(t // 2 for t in total), *(t - t // 2 for t in total))


def initialize_convolutions(model: Model) -> None:
    """Give every `Conv2d` normal weights of variance 2 / fan out, and a bias of zero.

    This keeps the variance of gradients through ReLU (He et al., arXiv:1502.01852, section 2.2;
    fan out = out_channels * kernel area); what torchvision does for the networks of this folder.
    """
    for layer in model.models():
        if isinstance(layer, Conv2d):
            channels, _, *kernel = layer.weight.shape
            std = math.sqrt(2 / (channels * math.prod(kernel)))
            init.normal(layer.weight, std=std)
            if layer.bias is not None:
                init.zeros(layer.bias)
