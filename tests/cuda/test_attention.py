"""Attention on CUDA at sizes and in dtypes that ATen's fused kernels take."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import meta
from meta.dialect import only
from meta.testing.compare import check

pytestmark = pytest.mark.cuda
BOUNDS = {torch.float16: 5e-3, torch.bfloat16: 4e-2, torch.float32: 1e-4}


@pytest.mark.parametrize(("masked", "causal"), [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("dialect", ["torch", "tvm"])
def test_against_float64(dialect: str, dtype: torch.dtype, masked: bool, causal: bool) -> None:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to("cuda", dtype)

    query, dy = random(2, 8, 200, 64), random(2, 8, 200, 64)
    key, value = random(2, 2, 150, 64), random(2, 2, 150, 64)
    mask = random(200, 150) > -0.5 if masked else None
    seen = None if mask is None else mask.cpu()
    with only(dialect):
        y, logsumexp = meta.scaled_dot_product_attention(query, key, value, mask, causal)
        gradients = meta.scaled_dot_product_attention_dx(
            query, key, value, mask, y, logsumexp, dy, causal
        )
    wide = [t.double().cpu().requires_grad_() for t in (query, key, value)]
    per_head = [wide[0], *(t.repeat_interleave(4, 1) for t in wide[1:])]
    expected = F.scaled_dot_product_attention(*per_head, seen, is_causal=causal)
    wanted = torch.autograd.grad(expected, wide, dy.double().cpu())
    for found, right in zip((y, *gradients), (expected, *wanted), strict=True):
        check(found, right, BOUNDS[dtype], BOUNDS[dtype])
