"""Converters of pooling."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.relax.registry import relax
from meta.op.core.op import Op


def _same_layout(layout: str, out_layout: str) -> None:
    if out_layout and out_layout != layout:
        raise Unconvertible(f"pooling from layout {layout} to {out_layout} is not supported")


def _pooling(name: str, function: Op) -> None:
    @relax(name, function)
    def pool(
        x: Any,
        *,
        pool_size: tuple[int, ...],
        strides: tuple[int, ...],
        padding: tuple[int, ...],
        dilation: tuple[int, ...],
        ceil_mode: bool,
        count_include_pad: bool,
        layout: str,
        out_layout: str,
    ) -> Any:
        _same_layout(layout, out_layout)
        window = (pool_size, strides, padding, dilation, ceil_mode, count_include_pad)
        return function(x, *window, layout)


def _adaptive(name: str, function: Op) -> None:
    @relax(name, function)
    def pool(x: Any, *, output_size: Any, layout: str, out_layout: str) -> Any:
        """No size leaves the extents as they are."""
        _same_layout(layout, out_layout)
        own = tuple(e for e, letter in zip(x.shape, layout, strict=True) if letter in "DHW")
        return function(x, output_size or own, layout)


for _rank in "1d", "2d", "3d":
    for _kind in "max", "avg":
        _pooling(f"nn.{_kind}_pool{_rank}", getattr(op, f"{_kind}_pool{_rank}"))
    _adaptive(f"nn.adaptive_avg_pool{_rank}", getattr(op, f"adaptive_avg_pool{_rank}"))


def _pooling_backward(name: str, gradient: Op, forward: Op | None) -> None:
    @relax(name, gradient)
    def backward(
        dy: Any,
        x: Any,
        *,
        pool_size: tuple[int, ...],
        strides: tuple[int, ...],
        padding: tuple[int, ...],
        dilation: tuple[int, ...],
        ceil_mode: bool,
        count_include_pad: bool,
        layout: str,
        out_layout: str,
    ) -> Any:
        """Of the result y only the type counts where there is no ``forward`` to compute it."""
        if layout != "NCHW":
            raise Unconvertible(f"the layout {layout!r} is not supported", hint="NCHW")
        _same_layout(layout, out_layout)
        window = (pool_size, strides, padding, dilation, ceil_mode, count_include_pad)
        y = dy if forward is None else forward(x, *window)
        return gradient(x, y, dy, *window)


_pooling_backward("grad.avg_pool2d_backward", op.avg_pool2d_dx, None)
_pooling_backward("grad.max_pool2d_backward", op.max_pool2d_dx, op.max_pool2d)
