"""`meta.model.functional_call` within transforms, eager, traced and compiled, beside torch.func."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta.base.errors import ArgumentError, UnknownName
from meta.grad import grad, jvp
from meta.model import functional_call
from tests.grad.test_transforms import close, randn
from tests.grad.test_value_and_grad import MODES, run


def networks() -> tuple[meta.Model, torch.nn.Module]:
    theirs = torch.nn.Sequential(
        torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.LayerNorm(5), torch.nn.Linear(5, 2)
    ).double()
    layers = meta.model
    ours = layers.Sequential(
        layers.Linear(3, 5), layers.Tanh(), layers.LayerNorm(5), layers.Linear(5, 2)
    ).to("float64")
    with meta.no_grad():
        for mine, other in zip(ours.state().values(), theirs.state_dict().values(), strict=True):
            assert mine.shape == tuple(other.shape)
            mine[...] = meta.array(other)
    return ours, theirs


X, Y = randn(6, 3), randn(6, 2, seed=1)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_of_parameters_of_each_example(mode: str) -> None:
    ours, theirs = networks()
    names = list(ours.state())

    def loss(state: Any, x: Any, y: Any) -> Any:
        return meta.sum((functional_call(ours, state, x[None])[0] - y) ** 2)

    def torch_loss(state: Any, x: Any, y: Any) -> Any:
        found = torch.func.functional_call(theirs, state, (x[None],))[0]
        return ((found - y) ** 2).sum()

    state = dict(theirs.state_dict())
    wanted = torch.func.vmap(torch.func.grad(torch_loss), (None, 0, 0))(state, X, Y)
    made = meta.vmap(grad(loss), (None, 0, 0))
    before = {n: a.numpy().copy() for n, a in ours.state().items()}
    found = run(mode, made, dict(ours.state()), meta.array(X), meta.array(Y))
    assert not made.loops
    close([found[n] for n in names], list(wanted.values()))
    assert all((a.numpy() == before[n]).all() for n, a in ours.state().items())


@pytest.mark.parametrize("mode", MODES)
def test_an_ensemble_and_its_tangents(mode: str) -> None:
    ours, theirs = networks()
    stacked = [torch.stack([t, t * 0.5, t + 1]) for t in theirs.state_dict().values()]

    def call(state: Any, x: Any) -> Any:
        def one(state: Any) -> Any:
            return jvp(lambda x: functional_call(ours, state, x), (x,), (x,))

        return meta.vmap(one)(state)

    def by_torch(values: Any) -> Any:
        state = dict(zip(theirs.state_dict(), values, strict=True))
        return torch.func.jvp(lambda x: torch.func.functional_call(theirs, state, (x,)), (X,), (X,))

    state = dict(zip(ours.state(), map(meta.array, stacked), strict=True))
    found = run(mode, call, state, meta.array(X))
    rows = [by_torch([t[i] for t in stacked]) for i in range(3)]
    close(found, tuple(torch.stack(column) for column in zip(*rows, strict=True)))


def test_a_leaf_in_place_of_a_parameter_gets_the_gradient() -> None:
    layer = meta.model.Linear(3, 2)
    w = meta.ones((2, 3))
    w.requires_grad = True
    name = next(n for n, a in layer.state().items() if a.shape == (2, 3))
    meta.sum(functional_call(layer, {name: w}, meta.ones((1, 3)))).backward()
    assert w.grad.tolist() == [[1.0] * 3] * 2
    assert layer.state()[name].grad is None and not (layer.state()[name].numpy() == 1).all()


def test_an_error_leaves_the_model_as_it_was() -> None:
    layer = meta.model.Linear(3, 2)
    (name, own), *_ = layer.state().items()
    tensor = own.tensor
    with pytest.raises(meta.MetaError):
        functional_call(layer, {name: meta.zeros(own.shape)}, meta.ones((1, 9)))
    assert own.tensor is tensor
    with pytest.raises(UnknownName, match="no array 'weigth'"):
        functional_call(layer, {"weigth": own}, meta.ones((1, 3)))
    with pytest.raises(ArgumentError, match="cannot stand for"):
        functional_call(layer, {name: meta.ones(7)}, meta.ones((1, 3)))
