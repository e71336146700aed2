"""Attention on CUDA at sizes and in dtypes that ATen's fused kernels take."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import meta
from meta.base import config
from meta.dialect import only
from meta.dialect.core.preference import forget
from meta.testing.compare import check

pytestmark = pytest.mark.cuda
BOUNDS = {torch.float16: 5e-3, torch.bfloat16: 4e-2, torch.float32: 1e-4}


CASES = [(False, False), (False, True), (True, False)]


@pytest.mark.parametrize(("masked", "causal"), CASES)
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("dialect", ["torch", "tvm"])
def test_against_float64(dialect: str, dtype: torch.dtype, masked: bool, causal: bool) -> None:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to("cuda", dtype)

    query, dy = random(2, 8, 200, 64), random(2, 8, 200, 64)
    key, value = random(2, 2, 150, 64), random(2, 2, 150, 64)
    mask = random(200, 150) > -0.5 if masked else None
    compare(dialect, (query, key, value, dy), mask, causal, BOUNDS[dtype])


@pytest.mark.parametrize(("masked", "causal"), CASES)
@pytest.mark.parametrize("tf32", [False, True])
def test_float32_on_tensor_cores(tf32: bool, masked: bool, causal: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    query, dy = torch.randn(2, 2, 8, 200, 48, generator=generator).cuda()
    key, value = torch.randn(2, 2, 2, 150, 48, generator=generator).cuda()
    mask = torch.randn(200, 150, generator=generator).cuda() > -0.5 if masked else None
    with config.override(META_TF32=tf32):
        forget()  # what was dispatched with the knob elsewhere
        own = ("cuda",) if tf32 else ("cuda", "torch")
        compare(own, (query, key, value, dy), mask, causal, 5e-3 if tf32 else 1e-4)
    forget()


def compare(
    dialects: str | tuple[str, ...],
    tensors: tuple[torch.Tensor, ...],
    mask: torch.Tensor | None,
    causal: bool,
    bound: float,
) -> None:
    """Check results and gradients of a dialect beside torch in float64."""
    query, key, value, dy = tensors
    seen = None if mask is None else mask.cpu()
    with only(*([dialects] if isinstance(dialects, str) else dialects)):
        y, logsumexp = meta.fused_attention(query, key, value, mask, causal)
        gradients = meta.fused_attention_dx(query, key, value, mask, y, logsumexp, dy, causal)
    wide = [t.double().cpu().requires_grad_() for t in (query, key, value)]
    per_head = [wide[0], *(t.repeat_interleave(4, 1) for t in wide[1:])]
    expected = F.scaled_dot_product_attention(*per_head, seen, is_causal=causal)
    wanted = torch.autograd.grad(expected, wide, dy.double().cpu())
    for found, right in zip((y, *gradients), (expected, *wanted), strict=True):
        check(found, right, bound, bound)
