"""Products with what follows them in gated layers and residual networks: rows of
`kernel_list_cuda.py`. ``--group gated --dialect cutlass`` measures the kernels of CUTLASS beside
those that run by default.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from cuda_kernel import Kernel, normal

from meta import op

HALF = (torch.float16, torch.bfloat16)
SIZES = ((4096, 2048, 5632), (512, 4096, 11008))
"""Rows, width and inner width."""


def joined(x: Any, w: Any) -> Any:
    """A gated layer whose two weights lie one behind the other."""
    gate, up = op.split(op.dense(x, w), 2, -1)
    return op.multiply(op.silu(gate), up)


def joined_torch(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    gate, up = F.linear(x, w).chunk(2, -1)
    return F.silu(gate) * up


def gradient(dy: Any, w: Any, up: Any, act: Any, gate: Any) -> Any:
    """The gradients of act = silu(gate) and of up, of which the layer behind reads the product."""
    dz = op.matmul(dy, w)
    return op.concat((op.multiply(dz, act), op.silu_dx(gate, op.multiply(dz, up))), 0)


def gradient_torch(
    dy: torch.Tensor, w: torch.Tensor, up: torch.Tensor, act: torch.Tensor, gate: torch.Tensor
) -> torch.Tensor:
    dz = dy @ w
    return torch.cat((dz * act, torch.ops.aten.silu_backward(dz * up, gate)))


def _layer(rows: int, width: int, inner: int) -> list[Kernel]:
    name = f"{rows}x{width} -> {inner}"
    wide, flops = (rows, inner), 2.0 * rows * width * inner
    return [
        Kernel(
            "gated", f"silu(x w) * (x v), weights joined, {name}", joined, joined_torch,
            normal((rows, width), (2 * inner, width)), flops=2 * flops, dtypes=HALF, chain=True,
        ),
        Kernel(
            "gated", f"silu(c) * (x w) {name}",
            lambda x, w, c: op.multiply(op.silu(c), op.dense(x, w)),
            lambda x, w, c: F.silu(c) * F.linear(x, w),
            normal((rows, width), (inner, width), wide), flops=flops, dtypes=HALF, chain=True,
        ),
        Kernel(
            "gated", f"gradients of silu(g) * u {name}", gradient, gradient_torch,
            normal((rows, width), (width, inner), wide, wide, wide), flops=flops, dtypes=HALF,
            chain=True,
        ),
        Kernel(
            "gated", f"dense, add {rows}x{inner} -> {width}",
            lambda x, w, c: op.add(op.dense(x, w), c), lambda x, w, c: F.linear(x, w) + c,
            normal(wide, (width, inner), (rows, width)), flops=flops, dtypes=HALF, chain=True,
        ),
    ]  # fmt: skip


GATED = [kernel for one in SIZES for kernel in _layer(*one)]
