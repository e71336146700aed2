"""Converters of convolutions."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.frontend.core.products import product
from meta.frontend.relax.registry import relax
from meta.op.core.op import Op


def _convolution(name: str, function: Op) -> None:
    @relax(name, function)
    def conv(
        x: Any,
        w: Any,
        *,
        strides: tuple[int, ...],
        padding: tuple[int, ...],
        dilation: tuple[int, ...],
        groups: int,
        data_layout: str,
        kernel_layout: str,
        out_layout: str,
        out_dtype: str,
    ) -> Any:
        window = (strides, padding, dilation, groups)
        layouts = (data_layout, kernel_layout, out_layout or data_layout)
        return product(lambda a, b: function(a, b, *window, *layouts), x, w, out_dtype)


def _transposed(name: str, function: Op) -> None:
    @relax(name, function)
    def conv_transpose(
        x: Any,
        w: Any,
        *,
        strides: tuple[int, ...],
        padding: tuple[int, ...],
        output_padding: tuple[int, ...],
        dilation: tuple[int, ...],
        groups: int,
        data_layout: str,
        kernel_layout: str,
        out_layout: str,
        out_dtype: str,
    ) -> Any:
        window = (strides, padding, output_padding, dilation, groups)
        layouts = (data_layout, kernel_layout, out_layout or data_layout)
        return product(lambda a, b: function(a, b, *window, *layouts), x, w, out_dtype)


for _name, _op in {
    "nn.conv1d": op.conv1d,
    "nn.conv2d": op.conv2d,
    "nn.conv3d": op.conv3d,
}.items():
    _convolution(_name, _op)

for _name, _op in {
    "nn.conv1d_transpose": op.conv1d_transpose,
    "nn.conv2d_transpose": op.conv2d_transpose,
    "nn.conv3d_transpose": op.conv3d_transpose,
}.items():
    _transposed(_name, _op)
