"""Attention with dropout, windows and slopes, and scans down columns, as rows of `kernels_cuda.py`.

torch's attention has dropout; windows and slopes are masks to it. Gradients are those of a call
with its forward pass. A product that a mask hides counts for nobody.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from cuda_kernel import Kernel, Make, normal

import meta
from meta import op

SHORT, LONG = (8, 12, 512, 64), (2, 12, 4096, 64)
DROPPED, WINDOW = 0.1, 256
COLUMNS = (8192, 8192)


def flops(shape: tuple[int, ...], products: int = 2, keys: float | None = None) -> float:
    """Return the operations of attention's products, by default of queries that look back."""
    batch, heads, length, width = shape
    return 2.0 * products * batch * heads * length * (keys or length / 2) * width


def dropped(*parts: Any) -> Any:
    return meta.scaled_dot_product_attention(*parts, None, DROPPED, True)


def dropped_torch(*parts: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(*parts, dropout_p=DROPPED, is_causal=True)


def gradient(query: Any, key: Any, value: Any, dy: Any) -> Any:
    """The gradient of query, of a call with dropout."""
    drops = {"dropout_key": op.random_key("cuda:0"), "dropout_p": DROPPED}
    y, logsumexp = op.fused_attention(query, key, value, None, True, **drops)
    given = query, key, value, None, y, logsumexp, dy
    dquery, dkey, dvalue = op.fused_attention_dx(*given, True, **drops)
    return dquery + dkey + dvalue


def gradient_torch(*given: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in given[:3]]
        dquery, dkey, dvalue = torch.autograd.grad(dropped_torch(*leaves), leaves, given[3])
    return dquery + dkey + dvalue


def distances(query: torch.Tensor) -> torch.Tensor:
    steps = torch.arange(query.shape[2], device=query.device)
    return steps - steps[:, None]


def windowed(*parts: Any) -> Any:
    return op.fused_attention(*parts, None, True, window=(WINDOW, -1))[0]


def windowed_torch(*parts: torch.Tensor) -> torch.Tensor:
    distance = distances(parts[0])
    return F.scaled_dot_product_attention(*parts, (distance <= 0) & (distance >= -WINDOW))


def sloped(query: Any, key: Any, value: Any, slopes: Any) -> Any:
    return op.fused_attention(query, key, value, None, True, slopes=slopes)[0]


def sloped_torch(query: Any, key: Any, value: Any, slopes: Any) -> torch.Tensor:
    distance = distances(query)
    bias = slopes[:, None, None] * distance
    bias = bias.masked_fill(distance > 0, -torch.inf).to(query.dtype)
    return F.scaled_dot_product_attention(query, key, value, bias[None])


def with_slopes(g: torch.Generator, dtype: torch.dtype) -> list[torch.Tensor]:
    heads = SHORT[1]
    slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, device=g.device) / heads)
    return [*normal(SHORT, SHORT, SHORT)(g, dtype), slopes.to(dtype)]


ATTENTION = [
    Kernel(
        "attention", "attention with dropout", dropped, dropped_torch, normal(SHORT, SHORT, SHORT),
        flops=flops(SHORT),
    ),
    Kernel(
        "attention", "attention with dropout, and gradient", gradient, gradient_torch,
        normal(SHORT, SHORT, SHORT, SHORT), flops=flops(SHORT, 7),
    ),
    Kernel(
        "attention", "attention in a window", windowed, windowed_torch, normal(LONG, LONG, LONG),
        flops=flops(LONG, keys=WINDOW),
    ),
    Kernel(
        "attention", "attention with slopes", sloped, sloped_torch, with_slopes,
        flops=flops(SHORT),
    ),
]  # fmt: skip


def around(mean: float, deviation: float) -> Make:
    """Columns that neither sums nor products of half precision leave."""

    def make(generator: torch.Generator, dtype: torch.dtype) -> list[torch.Tensor]:
        (x,) = normal(COLUMNS)(generator, torch.float32)
        return [(mean + deviation * x).to(dtype)]

    return make


# In half precision PyTorch's scans down columns add and multiply in half precision: at 8,192 rows
# they are off by some percent, and nothing can be compared with them.
SCANS = [
    Kernel(
        "scans", f"{name} down columns", lambda x, f=ours: f(x, 0), lambda x, f=theirs: f(x, 0),
        around(mean, deviation), dtypes=(torch.float32,),
    )
    for name, ours, theirs, mean, deviation in (
        ("cumsum", meta.cumsum, torch.cumsum, 0.0, 0.05),
        ("cumprod", meta.cumprod, torch.cumprod, 1.0, 0.01),
    )
]  # fmt: skip
