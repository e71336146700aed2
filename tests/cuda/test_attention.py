"""Attention on CUDA at sizes and in dtypes that ATen's fused kernels take."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

import meta
from meta.base import config
from meta.dialect import only
from meta.dialect.core.preference import forget
from meta.frontend.dynamo import compiler
from meta.ir import parse
from meta.passes import infer_type
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


TRAINED = [(2, 8, 200, 150), (1, 8, 200, 150), (8, 200, 150), (2, 1, 1, 150), (1, 150), (200, 150)]


@pytest.mark.parametrize("shape", TRAINED, ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dialect", ["cudnn", "torch"])
def test_masks_that_are_trained(dialect: str, causal: bool, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to("cuda", torch.bfloat16)

    tensors = random(2, 8, 200, 64), random(2, 8, 150, 64), random(2, 8, 150, 64), random(*shape)
    dy = random(2, 8, 200, 64)
    head = ", ".join(
        f"%{n}: bfloat16{list(t.shape)}" for n, t in zip("qkvmd", (*tensors, dy), strict=True)
    )
    module = infer_type(
        parse(f"""
    func @main({head}) {{
      %f = fused_attention(%q, %k, %v, %m, {causal})
      %y = %f.0
      %l = %f.1
      %g = fused_attention_dx(%q, %k, %v, %m, %y, %l, %d, {causal})
      %a = %g.0
      %b = %g.1
      %c = %g.2
      %e = fused_attention_dmask(%q, %k, %v, %m, %y, %l, %d, {causal})
      return (%y, %a, %b, %c, %e)
    }}""")
    )
    arrays = [meta.ndarray(t) for t in (*tensors, dy)]
    with only(dialect, "tvm"):
        executable = meta.vm.compile(module, *arrays)
    fused = "cudnn.fused_attention_dx_dmask" in executable.kernels()
    assert fused == (dialect == "cudnn"), executable.kernels()
    wide = [t.double().cpu().requires_grad_() for t in tensors]
    seen = torch.ones(200, 150, dtype=torch.bool).tril() if causal else torch.ones(1).bool()
    y = F.scaled_dot_product_attention(*wide[:3], torch.where(seen, wide[3], -torch.inf))
    wanted = y, *torch.autograd.grad(y, wide, dy.double().cpu())
    for found, right in zip(executable(*arrays), wanted, strict=True):
        largest = right.abs().max().item()
        check(found, right, 4e-2, 2e-2 * max(1.0, largest))


@pytest.mark.parametrize("masked", [False, True])
def test_dropout_under_torch_compile(masked: bool) -> None:
    """The result is linear in value, for what was dropped, and each call drops something else."""
    generator = torch.Generator().manual_seed(0)
    mask = (torch.rand(4, 1, 1, 256, generator=generator) > 0.2).cuda() if masked else None

    def run(x: torch.Tensor) -> torch.Tensor:
        q, k, v = x.view(4, 256, 3, 8, 64).permute(2, 0, 3, 1, 4).unbind(0)
        return F.scaled_dot_product_attention(q, k, v, mask, 0.25, is_causal=mask is None) + v * 0

    x = torch.randn(4, 256, 3, 8 * 64, generator=generator).to("cuda", torch.bfloat16)
    x.requires_grad_()
    dy = torch.randn(4, 8, 256, 64, generator=generator).to("cuda", torch.bfloat16)
    with compiler.record_compiled_graphs() as graphs:
        compiled, results = torch.compile(run, backend="meta"), []
        for _ in range(5):
            y = compiled(x)
            (dx,) = torch.autograd.grad(y, x, dy)
            dv, v = (t.detach().double().view(4, 256, 3, 512)[:, :, 2] for t in (dx, x))
            expected = (dy.double() * y.double()).sum().item()
            assert (dv * v).sum().item() == pytest.approx(expected, rel=2e-2, abs=20.0)
            results.append(y.detach())
    assert not any(torch.equal(a, b) for a, b in pairwise(results))
    kept = F.scaled_dot_product_attention(
        *x.detach().view(4, 256, 3, 8, 64).permute(2, 0, 3, 1, 4).float().unbind(0),
        mask,
        is_causal=mask is None,
    )
    mean = torch.stack(results).float().mean(0)
    assert (mean - kept).norm() < 0.75 * (results[0].float() - kept).norm()
    kernels = {k for g in graphs for p in g.programs() for k in p.executable.kernels()}
    assert any(k.startswith("triton.") and "attention" in k for k in kernels), kernels
    assert not any(p.calls_back for g in graphs for p in g.programs())
