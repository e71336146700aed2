"""Converters of operators in the name space "contrib" that are in no other family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meta import op
from meta.frontend.relay.arguments import ints
from meta.frontend.relay.layout import from_plain, read_layout, to_plain
from meta.frontend.relay.registry import relay

relay.refuse(
    "contrib.ethosu.binary_elementwise",
    "contrib.ethosu.conv2d",
    "contrib.ethosu.depthwise_conv2d",
    "contrib.ethosu.identity",
    "contrib.ethosu.pooling",
    "contrib.ethosu.unary_elementwise",
    why="it is an instruction of the Ethos-U processor with packed weights; save the model before "
    "it is partitioned for that processor",
)


def _pooled(pool: Callable[..., Any], data: Any, size: tuple[int, ...], layout: str) -> Any:
    """Pool in the layout without inner parts."""
    plain = read_layout(layout).primal
    data = to_plain(data, layout)
    at = plain.index("H"), plain.index("W")
    extents = size or tuple(data.shape[a] for a in at)
    return from_plain(pool(data, extents if len(extents) == 2 else extents * 2, plain), layout)


@relay("contrib.adaptive_avg_pool2d", op.adaptive_avg_pool2d, ignore=("out_layout",))
def adaptive_avg_pool2d(data: Any, *, output_size: tuple[int, ...], layout: str) -> Any:
    """TVM 0.6's name of nn.adaptive_avg_pool2d."""
    return _pooled(op.adaptive_avg_pool2d, data, ints(output_size), layout)


@relay("contrib.adaptive_max_pool2d", op.adaptive_max_pool2d, ignore=("out_layout",))
def adaptive_max_pool2d(data: Any, *, output_size: tuple[int, ...], layout: str) -> Any:
    """TVM 0.6's name of nn.adaptive_max_pool2d."""
    return _pooled(op.adaptive_max_pool2d, data, ints(output_size), layout)
