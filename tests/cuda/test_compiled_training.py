"""Training under `torch.compile(backend="meta")` on a GPU, with CUDA graphs, called without
AOTAutograd's wrapper: gradients are torch's, and nobody sees what he was given change.
"""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

import meta.frontend.dynamo  # noqa: F401  (registers the backend)

pytestmark = pytest.mark.cuda


class Deep(nn.Module):
    """Layers enough that graphs pay, some of which keep their results."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x)) + torch.sin(x)
        return x


def pair() -> tuple[Any, nn.Module, nn.Module]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Deep().to(device="cuda")
    return torch.compile(model, backend="meta", fullgraph=True), model, copy.deepcopy(model)


def same(found: Any, expected: Any, tolerance: float = 1e-2) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def batch(i: int) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(i)
    return torch.randn(32, 64, device="cuda", generator=generator)


def test_results_and_gradients_stay() -> None:
    run, model, other = pair()
    kept = []
    for i in range(8):
        both = []
        for f, m in ((run, model), (other, other)):
            m.zero_grad()
            y = f(batch(i))
            y.square().sum().backward()
            both.append([y.detach(), *(p.grad for p in m.parameters())])
            if f is run:
                assert (type(y.grad_fn).__name__ == "TrainingFunctionBackward") == (i > 0)
        same(*both)
        kept.append((both[0], [t.clone() for t in both[0]]))
        for now, then in kept:
            same(now, then, 0)


def test_several_forward_passes_before_their_gradients() -> None:
    run, model, other = pair()
    for i in range(3):
        run(batch(i)).sum().backward()
    results = [run(batch(i)) for i in range(5)]
    for i, y in reversed(list(enumerate(results))):
        weight, theirs = model.layers[0].weight, other.layers[0].weight
        once = torch.autograd.grad(y.sum(), weight, retain_graph=True)
        same(once, torch.autograd.grad(y.sum(), weight), 0)
        same(once, torch.autograd.grad(other(batch(i)).sum(), theirs))


def test_threads_on_streams_of_their_own() -> None:
    run, _, other = pair()

    def gradient(f: Any, i: int) -> torch.Tensor:
        x = batch(i).requires_grad_()
        (found,) = torch.autograd.grad(f(x).square().sum(), x)
        return found

    def work(i: int) -> torch.Tensor:
        with torch.cuda.stream(torch.cuda.Stream()):
            found = gradient(run, i)
            torch.cuda.current_stream().synchronize()
            return found

    for i in range(3):
        gradient(run, i)
    torch.cuda.synchronize()
    with ThreadPoolExecutor(1) as pool:  # one after the other, by a thread that has not compiled it
        found = list(pool.map(work, range(20)))
    for i, grad in enumerate(found):
        same(grad, gradient(other, i))
