"""Products in groups, as a mixture of experts has them, and the loss of a language model's last
layer: rows of `kernel_list_cuda.py`. torch has a kernel of groups for bfloat16 only.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from cuda_kernel import Kernel, Make, normal

import meta
from meta import op

BFLOAT16 = (torch.bfloat16,)
ROWS, WORDS, WIDTH = 4096, 50257, 768


def grouped(groups: int, *shapes: tuple[int, ...]) -> Make:
    """Return inputs, and where groups of rows of the first end: of random sizes, one empty."""

    def make(g: torch.Generator, dtype: torch.dtype) -> list[torch.Tensor]:
        made = normal(*shapes)(g, dtype)
        cuts = torch.rand(groups - 1, generator=g, device=g.device).sort().values
        cuts[1] = cuts[0]
        ends = torch.cat([cuts * shapes[0][0], torch.full((1,), shapes[0][0], device=g.device)])
        return [*made, ends.to(torch.int32)]

    return make


def _experts(tokens: int, groups: int, k: int, n: int) -> list[Kernel]:
    """Forward, and both gradients."""
    name, flops = f"{tokens}x{k}, {groups} of {n}x{k}", 2.0 * tokens * k * n
    x, w, dy = (tokens, k), (groups, n, k), (tokens, n)
    return [
        Kernel(
            "groups", f"grouped_matmul {name}", op.grouped_matmul_nt,
            lambda x, w, ends: F.grouped_mm(x, w.mT, offs=ends),
            grouped(groups, x, w), flops=flops, dtypes=BFLOAT16,
        ),
        Kernel(
            "groups", f"grouped_matmul, dx {name}", op.grouped_matmul,
            lambda dy, w, ends: F.grouped_mm(dy, w, offs=ends),
            grouped(groups, dy, w), flops=flops, dtypes=BFLOAT16,
        ),
        Kernel(
            "groups", f"grouped_matmul, dw {name}", op.grouped_matmul_tn,
            lambda dy, x, ends: F.grouped_mm(dy.mT, x, offs=ends),
            grouped(groups, dy, x), flops=flops, dtypes=BFLOAT16,
        ),
    ]  # fmt: skip


def last_layer(g: torch.Generator, dtype: torch.dtype) -> list[torch.Tensor]:
    """Return hidden states, the weight of the last layer, and labels."""
    x, weight = normal((ROWS, WIDTH), (WORDS, WIDTH))(g, dtype)
    labels = torch.randint(WORDS, (ROWS,), generator=g, device=g.device)
    return [x, weight * WIDTH**-0.5, labels]


def _losses_gradients(x: Any, weight: Any, labels: Any) -> Any:
    """Both gradients of the mean, after the loss."""
    losses, total = op.linear_cross_entropies(x, weight, labels)
    share = op.full_like(losses, 1.0 / ROWS)
    zeros = op.zeros_like(losses)
    return op.concat(op.linear_cross_entropies_dxwb(share, zeros, x, weight, labels, total), 0)


def _torchs_loss(x: Any, weight: Any, labels: Any) -> Any:
    return F.cross_entropy(F.linear(x, weight), labels)


def _torchs_gradients(x: Any, weight: Any, labels: Any) -> Any:
    return torch.cat(torch.func.grad(_torchs_loss, argnums=(0, 1))(x, weight, labels))


LAYER = f"{ROWS}x{WORDS}x{WIDTH}"
EXPERTS = [
    *_experts(16384, 8, 4096, 14336 // 4),
    *_experts(4096, 64, 2048, 1408),
    Kernel(
        "losses of a layer", f"linear_cross_entropy {LAYER}", meta.linear_cross_entropy,
        _torchs_loss, last_layer, flops=2.0 * ROWS * WORDS * WIDTH,
        dtypes=(torch.float16, torch.bfloat16),
    ),
    Kernel(
        "losses of a layer", f"linear_cross_entropy, gradients {LAYER}", _losses_gradients,
        _torchs_gradients, last_layer, flops=6.0 * ROWS * WORDS * WIDTH,
        dtypes=(torch.float16, torch.bfloat16),
    ),
]  # fmt: skip
