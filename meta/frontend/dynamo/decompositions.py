"""Which of PyTorch's operators AOTAutograd is to take apart: of the core ATen decompositions those
of operators that have no converter. What has one stays whole, and so does attention with a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx
from torch._decomp import core_aten_decompositions
from torch.nn.functional import scaled_dot_product_attention

from meta.base.registry import Registry
from meta.frontend.aten import aten
from meta.frontend.aten.registry import name_of

WHOLE = frozenset(["_scaled_dot_product_flash_attention_for_cpu"])
"""Overloads that stay whole in any case: taken apart, this one returns something else in the place
of its logsumexp, of which the gradient, which is not taken apart, makes wrong numbers.
"""


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by overload."""
    found: Mapping[Any, Callable[..., Any]] = dict(core_aten_decompositions())
    return {
        overload: function
        for overload, function in found.items()
        if isinstance(overload, torch._ops.OpOverload)
        and name_of(overload) not in WHOLE
        and not is_converted(name_of(overload))
    }


def is_converted(name: str, registry: Registry[Any] = aten) -> bool:
    """Whether an overload has a converter, which is not a refusal."""
    converter = registry.get(name)
    return converter is not None and converter.function is not None


ATTENTION_ON = ("cuda",)
"""Kinds of device on which PyTorch takes attention apart whose mask its own kernels do not have."""


def keep_attention(graph: fx.GraphModule) -> None:
    """Let the calls of attention in a graph of Dynamo's, and in graphs within, stay whole."""
    for part in graph.modules():
        if isinstance(part, fx.GraphModule):
            for node in part.graph.nodes:
                if node.target is scaled_dot_product_attention:
                    node.target = attention
            part.recompile()


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """PyTorch's attention, to be traced, with the arguments of that.

    Which kernel PyTorch has for it depends on how the mask lies in memory: without one it is taken
    apart into products, whose scores are kept for the gradient. With a mask it is here the operator
    of its kernel in any case, and the mask as it is given.
    """
    plain = not (dropout_p or is_causal or enable_gqa) and isinstance(query.shape[-2], int)
    if plain and attn_mask is not None and _is_whole(query, key, value, attn_mask):
        whole = torch.ops.aten._scaled_dot_product_efficient_attention
        result: Tensor = whole(query, key, value, attn_mask, True, 0.0, False, scale=scale)[0]
        return result
    given = (query, key, value, attn_mask, dropout_p, is_causal)
    return scaled_dot_product_attention(*given, scale=scale, enable_gqa=enable_gqa)


def _is_whole(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> bool:
    """Whether there is an operator for attention of these."""
    operands = (query, key, value)
    return (
        query.device.type in ATTENTION_ON
        and all(t.ndim == 4 and t.dtype == query.dtype for t in operands)
        and query.shape[:2] == key.shape[:2] == value.shape[:2]
        and query.dtype in (torch.float16, torch.bfloat16, torch.float32)
        and mask.dtype in (torch.bool, query.dtype)
        and not mask.requires_grad
        and key.shape[2] > 0
    )
