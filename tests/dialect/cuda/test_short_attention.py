"""Attention over short sequences in half precision, and its gradients, run as C++ on the CPU,
beside torch in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import meta
from meta.base.device import Device
from meta.dialect.core import Unsupported
from meta.dialect.cuda import short_attention
from meta.ir import TensorType
from meta.runtime import gpu_properties

CUDA = Device("cuda:0")
BOUNDS = {torch.bfloat16: 2e-2, torch.float16: 3e-3}


@dataclass(frozen=True)
class Case:
    """Batch, heads, those of key, queries, keys, width; a mask's kind and shape."""

    sizes: tuple[int, int, int, int, int, int]
    mask: tuple[str, tuple[int, ...]] | None = None
    dtype: torch.dtype = torch.float16
    causal: bool = False
    scale: float | None = None
    layout: str = "BHSD"

    def __str__(self) -> str:
        kind = self.mask[0] if self.mask else "none"
        return f"{self.sizes}-{kind}-{self.dtype}-{self.causal}-{self.layout}"

    def placed(self, x: Tensor) -> Tensor:
        return x if self.layout == "BHSD" else x.transpose(1, 2).contiguous()


def of_type(tensor: Tensor) -> TensorType:
    return TensorType(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def made(case: Case) -> tuple[list[Tensor], Tensor | None]:
    """Return query, key, value and dy as [b, h, s, d], and the mask."""
    batch, heads, groups, queries, keys, width = case.sizes
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(case.dtype)

    tensors = [random(batch, heads, queries, width)]
    tensors += [random(batch, groups, keys, width) for _ in range(2)]
    tensors += [random(batch, heads, queries, width)]
    if case.mask is None:
        return tensors, None
    kind, shape = case.mask
    mask = random(*shape)
    if kind == "bool":
        return tensors, mask > -0.3
    if kind == "infinite":  # and the first query may look nowhere
        mask[random(*shape) > 0.7] = -torch.inf
        mask[..., 0, :] = -torch.inf
    return tensors, mask


def expected(case: Case, tensors: list[Tensor], mask: Tensor | None) -> list[Tensor]:
    """Return y, logsumexp, the gradients of query, key and value, and of a mask of numbers."""
    query, key, value, dy = (t.double() for t in tensors)
    given = [query, key, value, *([mask.double()] if mask is not None and mask.dtype != torch.bool
             else [])]  # fmt: skip
    for tensor in given:
        tensor.requires_grad_()
    share, batch = query.shape[1] // key.shape[1], query.shape[0]
    scale = query.shape[-1] ** -0.5 if case.scale is None else case.scale
    scores = query @ key.repeat_interleave(share, 1).mT * scale
    if mask is not None:
        added = mask if len(given) == 3 else given[3]
        if added.ndim == 4 and added.shape[0] not in (1, batch):
            added = added.repeat(batch // added.shape[0], 1, 1, 1)
        scores = scores.masked_fill(~added, -torch.inf) if len(given) == 3 else scores + added
    if case.causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    blind = (scores == -torch.inf).all(-1, keepdim=True)
    weights = scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)
    y = weights @ value.repeat_interleave(share, 1)
    logsumexp = scores.logsumexp(-1).masked_fill(blind[..., 0], 0.0)
    return [y.detach(), logsumexp.detach(), *torch.autograd.grad(y, given, dy)]


def computed(case: Case, tensors: list[Tensor], mask: Tensor | None) -> list[Tensor]:
    query, key, value, dy = map(case.placed, tensors)
    masks = [] if mask is None else [mask]
    options = case.causal, case.scale, case.layout
    y, logsumexp = torch.full_like(query, torch.nan), torch.full(tensors[0].shape[:3], torch.nan)
    types = [of_type(query), of_type(key), of_type(value), None if mask is None else of_type(mask)]
    call = meta.op.fused_attention.call_values((*types, *options), CUDA)
    short_attention.forward(call).run(query, key, value, *masks, y, logsumexp)
    given = (query, key, value, *masks, y, logsumexp, dy)
    types += [of_type(y), of_type(logsumexp), of_type(dy)]
    found = [case.placed(y) if case.layout == "BHSD" else y.transpose(1, 2), logsumexp]
    if case.sizes[1] == case.sizes[2]:
        dx = [torch.full_like(t, torch.nan) for t in (query, key, value)]
        call = meta.op.fused_attention_dx.call_values((*types, *options), CUDA)
        short_attention.backward(call).run(*given, *dx)
        found += dx if case.layout == "BHSD" else [t.transpose(1, 2) for t in dx]
        if mask is not None and mask.dtype != torch.bool:
            dmask = torch.full_like(mask, torch.nan)
            call = meta.op.fused_attention_dmask.call_values((*types, *options), CUDA)
            short_attention.backward_mask(call).run(*given, dmask)
            found.append(dmask)
    return found


CASES = [
    Case((6, 1, 1, 20, 20, 16), ("numbers", (2, 1, 20, 20)), layout="BSHD"),
    Case((2, 2, 2, 17, 9, 8), ("numbers", (1, 2, 17, 9)), torch.bfloat16),
    Case((4, 1, 1, 5, 20, 24), ("infinite", (1, 1, 5, 20))),
    Case((2, 1, 1, 18, 18, 16), None, causal=True, scale=0.3),
    Case((3, 2, 1, 9, 12, 8), ("bool", (3, 1, 1, 12)), torch.bfloat16, layout="BSHD"),
]
LATER = [
    Case((2, 1, 1, 49, 49, 32), ("numbers", (1, 49, 49)), torch.bfloat16, layout="BSHD"),
    Case((2, 1, 1, 64, 64, 64), ("numbers", (64,)), causal=True),
    Case((2, 1, 1, 33, 57, 40), ("numbers", (1, 1, 33, 1))),
    Case((1, 1, 1, 1, 1, 8)),
]


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    "case", [*CASES, *(pytest.param(c, marks=pytest.mark.slow) for c in LATER)], ids=str
)
def test_results_and_gradients(case: Case) -> None:
    tensors, mask = made(case)
    found = computed(case, tensors, mask)
    correct = expected(case, tensors, mask)
    if case.sizes[1] != case.sizes[2]:
        correct = correct[:2]
    bound = BOUNDS[case.dtype]
    for one, right in zip(found, correct, strict=True):
        assert one.isfinite().all()
        distance = (one.double() - right).abs().max()
        assert distance <= bound * right.abs().max() + 1e-4


@pytest.mark.usefixtures("emulated")
def test_batches_are_shared_out_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many thread blocks there are for a head, the sum over batches is the same."""
    case = CASES[0]
    tensors, mask = made(case)
    results = []
    for chunks in (1, 2, 3):
        monkeypatch.setattr(short_attention, "_chunks", lambda *_, chunks=chunks: chunks)
        results.append(computed(case, tensors, mask))
    for other in results[1:]:
        for one, same in zip(results[0][:-1], other[:-1], strict=True):
            assert torch.equal(one, same)
        torch.testing.assert_close(results[0][-1], other[-1], rtol=2e-3, atol=2e-3)


@pytest.fixture
def _any_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_properties, "query", lambda device: gpu_properties.DEFAULT)


@pytest.mark.usefixtures("_any_chip")
def test_heads_that_share_a_key_have_no_gradient_here() -> None:
    q, k = (meta.ir.parse_type(f"float16[1, {h}, 8, 16]") for h in (2, 1))
    s = meta.ir.parse_type("float32[1, 2, 8]")
    call = meta.op.fused_attention_dx.call_values(
        (q, k, k, None, q, s, q, False, None, "BHSD"), CUDA
    )
    with pytest.raises(Unsupported, match="several heads share a key"):
        short_attention.backward(call)
