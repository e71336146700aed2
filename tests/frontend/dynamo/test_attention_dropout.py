"""Dropout of attention's probabilities is part of one operator: what the forward pass dropped, the
gradient drops.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from meta.frontend.dynamo import compiler, fuse_attention
from meta.frontend.dynamo.attention_operators import fused_attention

KEY = torch.tensor([1234567])
B, H, Q, K, D = 3, 4, 5, 7, 8


@pytest.fixture(autouse=True)
def _as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuse_attention, "ATTENTION_ON", ("cpu",))


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def operands(dtype: torch.dtype, heads: int = H) -> list[Tensor]:
    shapes = (B, H, Q, D), (B, heads, K, D), (B, heads, K, D)
    return [numbers(*s, seed=i).to(dtype).requires_grad_() for i, s in enumerate(shapes)]


@pytest.mark.product
@pytest.mark.parametrize("heads", [H, 2])
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_are_the_numeric_ones(masked: bool, heads: int) -> None:
    mask = numbers(B, 1, Q, K, seed=5).double().requires_grad_() if masked else None

    def run(*given: Tensor) -> Tensor:
        return fused_attention(*given, *[None] * (not masked), False, 0.4, True, None, KEY, 0.4)[0]

    given = [*operands(torch.float64, heads), *([mask] if mask is not None else [])]
    assert torch.autograd.gradcheck(run, given)
    plain = scaled_dot_product_attention(*given[:3], mask, scale=0.4, enable_gqa=heads != H)
    assert not torch.allclose(run(*given), plain, atol=1e-2)


@pytest.mark.parametrize("heads", [H, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_programs_drop_what_the_operator_drops(causal: bool, heads: int) -> None:
    def run(q: Tensor, k: Tensor, v: Tensor, key: Tensor) -> Tensor:
        return fused_attention(q, k, v, None, causal, 0.4, False, None, key, 0.4)[0]

    given, same = operands(torch.bfloat16, heads), operands(torch.bfloat16, heads)
    dy = numbers(B, H, Q, D, seed=4).bfloat16()
    y, right = torch.compile(run, backend="meta", fullgraph=True)(*given, KEY), run(*same, KEY)
    y.backward(dy)
    right.backward(dy)
    torch.testing.assert_close(y, right, rtol=2e-2, atol=2e-2)
    for one, other in zip(given, same, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=4e-2, atol=4e-2)


FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "bool": {"attn_mask": numbers(B, 1, Q, K, seed=6) > -1},
    "added": {"attn_mask": numbers(Q, K, seed=6)},
}


@pytest.mark.product
@pytest.mark.parametrize("heads", [H, 2, 1])
@pytest.mark.parametrize("autocast", [True, False], ids=["autocast", "bfloat16"])
@pytest.mark.parametrize("form", FORMS)
def test_pytorchs_attention(form: str, autocast: bool, heads: int) -> None:
    """The result is linear in value, for what was dropped: its gradient has to agree with that."""
    dtype = torch.float32 if autocast else torch.bfloat16
    options = dict(FORMS[form], enable_gqa=heads == 2, dropout_p=0.5)
    if form == "added":
        options["attn_mask"] = options["attn_mask"].to(dtype)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return scaled_dot_product_attention(q, k, v, **options)

    q, k, v = operands(dtype, heads)
    dy = numbers(B, H, Q, D, seed=4).to(torch.bfloat16)
    with compiler.record_compiled_graphs() as graphs:
        compiled = torch.compile(run, backend="meta", fullgraph=True)
        results = []
        for _ in range(2):
            torch.manual_seed(7)
            y = compiled(q, k, v)
            results.append((y.detach().clone(), *torch.autograd.grad(y, (q, k, v), dy)))
        other = compiled(q, k, v).detach()
    for once, again in zip(*results, strict=True):
        assert torch.equal(once, again)  # of one seed
    y, dq, dk, dv = (t.double() for t in results[0])
    assert not torch.equal(y, other.double())
    torch.testing.assert_close(
        (dv * v).sum(), (dy * y).sum(), rtol=2e-2, atol=0.2, check_dtype=False
    )
    # Scaling all scores moves along q and k alike.
    torch.testing.assert_close(
        (dq * q).sum(), (dk * k).sum(), rtol=5e-2, atol=0.2, check_dtype=False
    )
    text = "\n".join(str(p.executable.module) for g in graphs for p in g.programs())
    assert text.count("dropout_p=0.5") == 2 and "softmax" not in text
    assert not any(p.calls_back for g in graphs for p in g.programs())


def test_what_is_kept_is_on_average_what_there_was() -> None:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k, v, dropout_p=0.25)

    q, k = (numbers(8, 8, 32, 16, seed=i).bfloat16() for i in range(2))
    v = torch.ones(8, 8, 32, 16, dtype=torch.bfloat16, requires_grad=True)
    y = torch.compile(run, backend="meta", fullgraph=True)(q, k, v).double()
    assert abs(y.mean() - 1) < 0.02 and 0.05 < y.std() < 0.5


def test_a_checkpoint_drops_the_same_again() -> None:
    from torch.utils.checkpoint import checkpoint

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def part(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return scaled_dot_product_attention(q, k, v, dropout_p=0.5) * 2

        y: Tensor = checkpoint(part, q, k, v, use_reentrant=False)
        return y

    q, k, v = operands(torch.bfloat16)
    y = torch.compile(run, backend="meta")(q, k, v)
    dy = numbers(B, H, Q, D, seed=4).bfloat16()
    (dv,) = torch.autograd.grad(y, v, dy)
    torch.testing.assert_close(
        (dv.double() * v).sum(), (dy.double() * y).sum(), rtol=2e-2, atol=0.2, check_dtype=False
    )
