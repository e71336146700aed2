"""By which operators torch writes others before TVM's importer reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return torch's own, but for those below."""
    table = torch.export.default_decompositions()
    table[aten._scaled_dot_product_flash_attention_for_cpu.default] = _attention
    return table


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel's result lies in memory as the query does, and views behind it were exported for
    that; the result of torch's decomposition always has the axes (tokens, batch, heads, width).
    """
    y, weights = aten._scaled_dot_product_attention_math.default(
        query,
        key,
        value,
        attn_mask=attn_mask,
        dropout_p=dropout_p,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    order = sorted(range(4), key=query.stride, reverse=True)
    if order == [0, 1, 2, 3]:
        return y, weights
    return y.permute(order).contiguous().permute([order.index(a) for a in range(4)]), weights
