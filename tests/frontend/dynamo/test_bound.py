"""Programs that are compiled for parameters where they lie, as on CUDA: here on the CPU."""

from __future__ import annotations

import copy

import pytest
import torch

from meta.frontend.dynamo import compiler
from tests.frontend.dynamo.models import made


def same(found, expected) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer", "tied"])
def test_training_is_torchs(name: str) -> None:
    model, inputs = made(name)
    other = copy.deepcopy(model)
    with compiler.record_compiled_graphs() as graphs:
        run = torch.compile(model, backend="meta", fullgraph=True)
        steps = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (model, other)]
        for _ in range(3):
            for f, step in zip((run, other), steps, strict=True):
                step.zero_grad()
                f(*inputs).square().mean().backward()
                step.step()
    same(dict(model.state_dict()), dict(other.state_dict()))
    assert [bool(g.for_all.converted.bound) for g in graphs] == [True, True]


def test_parameters_that_moved_are_found() -> None:
    model, inputs = made("mlp")
    run = torch.compile(model, backend="meta", fullgraph=True)
    with torch.no_grad():
        for _ in range(3):
            same(run(*inputs), model(*inputs))
            for p in model.parameters():
                p.data = torch.randn_like(p)
            same(run(*inputs), model(*inputs))


def test_models_of_one_class() -> None:
    models = [made("transformer")[0] for _ in range(2)]
    _, inputs = made("transformer")
    with torch.no_grad():
        for p in models[1].parameters():
            p.mul_(1.5)
    runs = [torch.compile(m, backend="meta", fullgraph=True) for m in models]
    for _ in range(2):
        for run, model in zip(runs, models, strict=True):
            same(run(*inputs), model(*inputs))
