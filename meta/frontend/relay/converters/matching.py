"""Converters of comparisons of images."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.relay.registry import relay
from meta.frontend.relay.windows import per_axis


@relay("nn.correlation", op.correlation)
def correlation(
    data1: Any,
    data2: Any,
    *,
    kernel_size: int,
    max_displacement: int,
    stride1: int,
    stride2: int,
    padding: tuple[int, ...],
    is_multiply: bool,
    layout: str,
) -> Any:
    if layout != "NCHW":
        raise Unconvertible(f"the layout {layout!r}: Relay has this operator for NCHW alone")
    window = (kernel_size, max_displacement, stride1, stride2, per_axis(padding))
    return op.correlation(data1, data2, *window, bool(is_multiply))
