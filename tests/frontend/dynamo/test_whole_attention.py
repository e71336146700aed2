"""Attention with a mask is one operator of the program, forward and backward, whatever the mask."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from meta.frontend.dynamo import compiler, decompositions


@pytest.fixture(autouse=True)
def _as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decompositions, "ATTENTION_ON", ("cpu",))


class Attention(nn.Module):
    """Two heads of 4 over 5 steps."""

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.project, self.scale = nn.Linear(8, 24), scale

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        parts = self.project(x).view(3, 5, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        return scaled_dot_product_attention(*parts, attn_mask=mask, scale=self.scale)


GENERATOR = torch.Generator().manual_seed(0)
MASKS = {
    "of all": torch.rand(3, 2, 5, 5, generator=GENERATOR) < 0.7,
    "of batches": torch.rand(3, 1, 1, 5, generator=GENERATOR) < 0.7,
    "of pairs": torch.rand(5, 5, generator=GENERATOR) < 0.7,
    "expanded": torch.ones(1, dtype=torch.bool).expand(3, 1, 5, 5),
    "that hides a query": torch.ones(5, 5, dtype=torch.bool).index_fill(0, torch.tensor(2), False),
    "that is added": torch.randn(3, 1, 5, 5, generator=GENERATOR),
}


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_it_is_torchs(mask: torch.Tensor, scale: float | None) -> None:
    torch.manual_seed(0)
    model = Attention(scale)
    other = copy.deepcopy(model)
    x = torch.randn(3, 5, 8)
    with compiler.watching() as graphs:
        run = torch.compile(model, backend="meta", fullgraph=True)
        found = run(x, mask)
        found.square().sum().backward()
    expected = other(x, mask)
    expected.square().sum().backward()
    torch.testing.assert_close(found, expected)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)
    programs = [str(g.for_all.executable.module) for g in graphs]
    assert ["fused_attention" in p for p in programs] == [True, True]
    assert not any("softmax" in p for p in programs)


def test_a_mask_that_is_trained_and_dropout_stay_pytorchs() -> None:
    q = torch.randn(3, 2, 5, 4)
    mask = torch.zeros(5, 5, requires_grad=True)

    def run(q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(q, q, q, attn_mask=mask)

    found = torch.compile(run, backend="meta", fullgraph=True)(q, mask)
    (gradient,) = torch.autograd.grad(found.square().sum(), mask)
    expected = run(q, mask)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradient, *torch.autograd.grad(expected.square().sum(), mask))


class Masked(Attention):
    """Attention whose mask is made of constants."""

    def __init__(self, mask: str) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        places = torch.arange(5, device=x.device)
        seen = {
            "all": (places >= 0)[None, None, None].expand(3, 1, 5, 5),
            "before": (places[:, None] >= places) & torch.ones(3, 1, 5, 5).bool(),
            "behind": places[:, None] <= places,
            "zeros": torch.zeros(3, 1, 1, 5).expand(3, 1, 5, 5),
            "ones": torch.full((5, 5), 1.0),
            "drawn": torch.rand(5, 5) < 2.0,
        }[self.mask]
        return super().forward(x, seen)


@pytest.mark.parametrize("trains", [True, False], ids=["train", "infer"])
@pytest.mark.parametrize(
    ("mask", "stays"),
    [
        ("all", False),
        ("zeros", False),
        ("before", False),  # causal
        ("behind", True),
        ("ones", True),
        ("drawn", True),
    ],
)
def test_masks_that_hide_nothing_are_left_out(mask: str, stays: bool, trains: bool) -> None:
    torch.manual_seed(0)
    model = Masked(mask).requires_grad_(trains)
    other = copy.deepcopy(model)
    x = torch.randn(3, 5, 8)
    with compiler.watching() as graphs:
        found = torch.compile(model, backend="meta", fullgraph=True)(x)
        if trains:
            found.square().sum().backward()
    expected = other(x)
    torch.testing.assert_close(found, expected)
    if trains:
        expected.square().sum().backward()
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)
    calls = [
        node.args[[a.name for a in node.target._schema.arguments].index("attn_bias")]
        for graph in graphs
        for node in graph.graph.graph.nodes
        if "efficient_attention" in str(node.target)
    ]
    assert len(calls) == 1 + trains and all((mask is not None) == stays for mask in calls)
