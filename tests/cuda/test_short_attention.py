"""Attention over short sequences in half precision on CUDA: results, gradients and that of the mask
beside float64, and attention that a model writes out, with windows, in training.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import meta
from meta.dialect import only
from meta.frontend.dynamo import compiler

pytestmark = [
    pytest.mark.cuda,
    # PyTorch's own, of the first product in its thread for gradients.
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS, but there was no:UserWarning"),
]
B, H = torch.bfloat16, torch.float16
BOUNDS = {B: 2e-2, H: 4e-3}
Mask = tuple[str, tuple[int, ...]] | None
CASES: list[tuple[tuple[int, ...], torch.dtype, Mask, bool, str]] = [
    # Batch, heads, those of key, queries, keys, width.
    ((64, 3, 3, 49, 49, 32), B, ("numbers", (1, 3, 49, 49)), False, "BHSD"),
    ((512, 3, 3, 49, 49, 32), B, ("numbers", (64, 3, 49, 49)), False, "BSHD"),
    ((64, 12, 12, 49, 49, 32), H, ("infinite", (4, 12, 49, 49)), False, "BHSD"),
    ((5, 4, 4, 49, 49, 32), B, ("numbers", (5, 1, 49, 49)), False, "BSHD"),
    ((5, 4, 4, 64, 64, 64), B, None, True, "BHSD"),
    ((5, 4, 4, 64, 64, 64), H, ("numbers", (64, 64)), False, "BHSD"),
    ((3, 4, 2, 17, 33, 24), B, ("bool", (17, 33)), False, "BHSD"),
    ((3, 4, 4, 17, 40, 16), H, ("bool", (3, 1, 1, 40)), False, "BSHD"),
    ((2, 4, 4, 40, 7, 40), B, ("numbers", (1, 4, 1, 7)), False, "BHSD"),
    ((2, 4, 4, 5, 60, 8), H, ("numbers", (60,)), True, "BHSD"),
    ((1, 1, 1, 1, 1, 8), B, None, False, "BHSD"),
    ((7, 5, 5, 33, 64, 56), B, ("numbers", (7, 5, 33, 64)), False, "BHSD"),
]


def mask_of(kind: Mask, dtype: torch.dtype, generator: torch.Generator) -> Tensor | None:
    if kind is None:
        return None
    name, shape = kind
    found = torch.randn(shape, generator=generator, device="cuda")
    if name == "bool":
        return found > -0.3
    if name == "infinite":  # and the first query may look nowhere
        found[torch.rand(shape, generator=generator, device="cuda") > 0.7] = -torch.inf
        found[..., 0, :] = -torch.inf
    return found.to(dtype)


def expected(tensors: list[Tensor], mask: Tensor | None, causal: bool) -> list[Tensor]:
    """Return y, logsumexp and the gradients, in float64."""
    query, key, value, dy = (t.double() for t in tensors)
    given = [query, key, value]
    added = mask
    if mask is not None and mask.dtype != torch.bool:
        added = mask.double()
        given.append(added)
    for tensor in given:
        tensor.requires_grad_()
    share = query.shape[1] // key.shape[1]
    scores = query @ key.repeat_interleave(share, 1).mT * query.shape[-1] ** -0.5
    if added is not None:
        if added.ndim == 4 and added.shape[0] not in (1, len(query)):
            added = added.repeat(len(query) // added.shape[0], 1, 1, 1)
        hides = added.dtype == torch.bool
        scores = scores.masked_fill(~added, -torch.inf) if hides else scores + added
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device="cuda").tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    blind = (scores == -torch.inf).all(-1, keepdim=True)
    weights = scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)
    y = weights @ value.repeat_interleave(share, 1)
    logsumexp = scores.logsumexp(-1).masked_fill(blind[..., 0], 0.0)
    return [y.detach(), logsumexp.detach(), *torch.autograd.grad(y, given, dy)]


@pytest.mark.parametrize(("sizes", "dtype", "kind", "causal", "layout"), CASES)
def test_beside_float64(
    sizes: tuple[int, ...], dtype: torch.dtype, kind: Mask, causal: bool, layout: str
) -> None:
    batch, heads, groups, queries, keys, width = sizes
    generator = torch.Generator("cuda").manual_seed(0)
    shapes = [(batch, h, n, width) for h, n in ((heads, queries), (groups, keys))]
    tensors = [
        torch.randn(shapes[i], generator=generator, device="cuda").to(dtype) for i in (0, 1, 1, 0)
    ]
    mask = mask_of(kind, dtype, generator)
    options = causal, None, layout

    def placed(x: Tensor) -> Tensor:
        return x if layout == "BHSD" else x.transpose(1, 2).contiguous()

    query, key, value, dy = map(placed, tensors)

    def found() -> list[Tensor]:
        y, logsumexp = meta.fused_attention(query, key, value, mask, *options)
        given = (query, key, value, mask, y, logsumexp, dy, *options)
        results = [placed(y.torch()), logsumexp.torch()]
        if heads == groups:
            results += [placed(t.torch()) for t in meta.fused_attention_dx(*given)]
            if mask is not None and mask.dtype != torch.bool:
                results.append(meta.fused_attention_dmask(*given).torch())
        return results

    with only("cuda"):
        results, again = found(), found()
    for one, other in zip(results, again, strict=True):
        assert torch.equal(one, other)  # sums have one order
    right = expected(tensors, mask, causal)
    for one, reference in zip(results, right[: len(results)], strict=True):
        assert one.isfinite().all()
        distance = (one.double() - reference).abs().max()
        assert distance <= BOUNDS[dtype] * (reference.abs().max() + 1e-3)


class Windows(nn.Module):
    """Attention within windows of 49 steps, with a bias that is learned, and a mask."""

    def __init__(self, mask: Tensor | None) -> None:
        super().__init__()
        self.project, self.back = nn.Linear(96, 288), nn.Linear(96, 96)
        self.table = nn.Parameter(torch.randn(147, 3) * 0.5)
        self.register_buffer("index", torch.randint(147, (49, 49)))
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.project(x).reshape(-1, 49, 3, 3, 32).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        scores = (query * 32**-0.5) @ key.transpose(-2, -1)
        bias = self.table[self.index.view(-1)].view(49, 49, -1).permute(2, 0, 1).contiguous()
        scores = scores + bias.unsqueeze(0)
        if self.mask is not None:
            scores = scores.view(-1, self.mask.shape[0], 3, 49, 49)
            scores = (scores + self.mask[:, None][None]).view(-1, 3, 49, 49)
        y = scores.softmax(-1) @ value
        return self.back(y.transpose(1, 2).reshape(-1, 49, 96))


@pytest.mark.parametrize("shifted", [False, True])
def test_windows_in_training(shifted: bool) -> None:
    torch.manual_seed(0)
    mask = torch.where(torch.rand(4, 49, 49) > 0.6, -100.0, 0.0) if shifted else None
    model, x = Windows(mask).cuda(), torch.randn(64, 49, 96, device="cuda")
    dy = torch.linspace(-1, 1, x.numel(), device="cuda").view(x.shape)

    def step(run: nn.Module, dtype: torch.dtype) -> list[Tensor]:
        given = x.to(dtype, copy=True).requires_grad_()
        with torch.autocast("cuda", B, enabled=dtype == torch.float32):
            y = run(given)
        y.backward(dy.to(y.dtype))
        gradients = [p.grad for p in run.parameters()]
        return [t.detach().double() for t in (y, given.grad, *gradients) if t is not None]

    with compiler.record_compiled_graphs() as graphs:
        found = step(torch.compile(copy.deepcopy(model), backend="meta"), torch.float32)
    plain, right = step(copy.deepcopy(model), torch.float32), step(model.double(), torch.float64)
    kernels = {k for g in graphs for p in g.programs() for k in p.executable.kernels()}
    assert {"cuda.attention_of_rows_saved", "cuda.attention_of_rows_dx_dmask"} <= kernels
    assert len(found) == len(right) == 7
    for one, other, reference in zip(found, plain, right, strict=True):
        distances = [(t - reference).abs().max() for t in (one, other)]
        assert distances[0] <= 2 * distances[1] + 1e-2 * reference.abs().max()
