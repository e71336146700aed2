"""torch.compile with options={"freeze": True}: packed weights, which may still change."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import meta
from meta.frontend.dynamo.compiler import GraphCompiler, record_compiled_graphs
from tests.frontend.dynamo.models import made


def frozen(model: nn.Module, **options: Any) -> Any:
    given = {"freeze": True, **options}
    return torch.compile(model, backend="meta", fullgraph=True, options=given)


def same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def packed(graphs: list[GraphCompiler]) -> list[int]:
    """Return how many kernels of packed weights each program has."""
    programs = [p.executable for g in graphs for p in g.programs()]
    kernels = [{} if p is None else p.kernels() for p in programs]
    return [sum(n for name, n in each.items() if "packed" in name) for each in kernels]


@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer", "tied"])
def test_results_are_torchs_whatever_changes_the_weights(name: str) -> None:
    model, inputs = made(name)
    model.eval()
    run = frozen(model)
    with record_compiled_graphs() as graphs, torch.no_grad():
        same(run(*inputs), model(*inputs))
        for p in model.parameters():
            p.mul_(1.25)
        same(run(*inputs), model(*inputs))
        for p in model.parameters():
            p.data = torch.randn_like(p) / 8
        same(run(*inputs), model(*inputs))
        model.load_state_dict({n: t * 0.5 for n, t in model.state_dict().items()})
        same(run(*inputs), model(*inputs))
    assert len(graphs) == 1 and packed(graphs)[0] > 0


def test_training_between_calls_is_not_frozen() -> None:
    model, inputs = made("cnn")
    other, run = copy.deepcopy(model), frozen(model)
    steps = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (model, other)]
    with record_compiled_graphs() as graphs:
        for _ in range(2):
            for f, step in zip((run, other), steps, strict=True):
                step.zero_grad()
                f(*inputs).square().mean().backward()
                step.step()
            with torch.no_grad():
                model.eval(), other.eval()
                same(run(*inputs), other(*inputs))
                model.train(), other.train()
    by_role = {g.role: n for g, n in zip(graphs, packed(graphs), strict=True)}
    assert by_role["forward"] == by_role["backward"] == 0 < by_role["inference"]


def test_models_of_one_class_have_weights_of_their_own() -> None:
    model, inputs = made("mlp")
    models = [model.eval(), copy.deepcopy(model).eval()]
    with torch.no_grad():
        for p in models[1].parameters():
            p.mul_(1.5)
        runs = [frozen(m) for m in models]
        for _ in range(2):
            for run, each in zip(runs, models, strict=True):
                same(run(*inputs), each(*inputs))


def test_sizes_that_change() -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 24)).eval()
    run = torch.compile(model, backend="meta", dynamic=True, options={"freeze": True})
    with record_compiled_graphs() as graphs, torch.inference_mode():
        for batch in (2, 5, 1, 64, 5):
            x = torch.randn(batch, 3, 6, 6)
            same(run(x), model(x))
    assert all(packed(graphs))


def test_weights_whose_writes_nobody_counts_are_an_error() -> None:
    with torch.inference_mode():
        model, x = nn.Linear(16, 32), torch.randn(4, 16)
        with pytest.raises(meta.errors.ArgumentError, match="inference_mode"):
            frozen(model)(x)


def test_half_precision_stays_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 16)).eval().bfloat16()
    x = torch.randn(4, 32, dtype=torch.bfloat16)
    with torch.no_grad():
        torch.testing.assert_close(frozen(model)(x), model(x), rtol=2e-2, atol=2e-2)
