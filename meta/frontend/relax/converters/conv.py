"""Converters of convolutions."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.frontend.relax.converters.linear_algebra import in_dtype, widened
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
        layouts = (data_layout, kernel_layout, out_layout or data_layout)
        x, w = widened(out_dtype, x, w)
        return in_dtype(function(x, w, strides, padding, dilation, groups, *layouts), out_dtype)


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
        layouts = (data_layout, kernel_layout, out_layout or data_layout)
        x, w = widened(out_dtype, x, w)
        y = function(x, w, strides, padding, output_padding, dilation, groups, *layouts)
        return in_dtype(y, out_dtype)


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
