"""Random numbers under torch.compile(backend="meta")."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.frontend.dynamo.models import Block


def test_a_seed_repeats_them() -> None:
    run = torch.compile(lambda x: torch.rand_like(x) + x, backend="meta", fullgraph=True)
    x = torch.zeros(1000)
    torch.manual_seed(3)
    first, second = run(x), run(x)
    torch.manual_seed(3)
    assert torch.equal(run(x), first)
    assert torch.equal(run(x), second)
    assert not torch.equal(first, second)
    assert 0.45 < first.mean().item() < 0.55


def test_dropout_drops_in_the_gradient_what_it_dropped() -> None:
    drop = nn.Dropout(0.3)
    run = torch.compile(drop, backend="meta", fullgraph=True)
    for _ in range(3):
        x = torch.ones(4000, requires_grad=True)
        y = run(x)
        y.sum().backward()
        assert torch.equal(y.detach(), x.grad)
        kept = (y > 0).float().mean().item()
        assert 0.65 < kept < 0.75
        assert y.max().item() == pytest.approx(1 / 0.7)


def test_dropout_in_a_model_repeats_and_trains() -> None:
    torch.manual_seed(0)
    model = Block(dropout=0.5)
    run = torch.compile(model, backend="meta", fullgraph=True)
    x = torch.randn(2, 5, 16)
    results, gradients = [], []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        model.zero_grad()
        y = run(x)
        y.square().sum().backward()
        results.append(y.detach())
        gradients.append(model.up.weight.grad.clone())
    assert torch.equal(results[0], results[2])
    assert torch.equal(gradients[0], gradients[2])
    assert not torch.equal(results[0], results[1])


def test_two_calls_draw_apart() -> None:
    def f(x):
        return torch.rand_like(x), torch.rand_like(x)

    a, b = torch.compile(f, backend="meta", fullgraph=True)(torch.zeros(100))
    assert not torch.equal(a, b)


def test_what_is_computed_again_for_a_gradient_drops_the_same() -> None:
    drop = nn.Dropout(0.5)

    def f(x):
        return checkpoint(lambda v: drop(torch.sin(v)), x, use_reentrant=False)

    run = torch.compile(f, backend="meta", fullgraph=True)
    x = torch.full((2000,), 0.5, requires_grad=True)
    y = run(x)
    y.sum().backward()
    expected = torch.where(y.detach() > 0, 2 * torch.cos(x.detach()), 0.0)
    torch.testing.assert_close(x.grad, expected)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.randn_like(x),
        lambda x: torch.randint(0, 9, (50,)) + 0 * x.sum(),
        lambda x: torch.bernoulli(torch.full_like(x, 0.5)),
        lambda x: torch.empty_like(x).exponential_(),
        lambda x: torch.randperm(50) + 0 * x.sum(),
        lambda x: torch.multinomial(x.softmax(0), 20, replacement=True),
    ],
)
def test_all_kinds_follow_the_seed(f) -> None:
    run = torch.compile(f, backend="meta", fullgraph=True)
    x = torch.zeros(50)
    torch.manual_seed(5)
    first = run(x)
    other = run(x)
    torch.manual_seed(5)
    assert torch.equal(run(x), first)
    assert not torch.equal(first, other)
