"""Tests of `ImportedModel`: names of the state, inputs by position and by name, modes."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import meta
from meta.base.call_context import current
from meta.frontend.core import ImportedModel
from meta.frontend.core.imported_model import keywords
from meta.op.core.tracing import Trace


class Scaled(ImportedModel):
    """What an importer would write: ``x * w + y``, with 1 added in train mode."""

    def convert(self, x: Any, y: Any) -> Any:
        trace = current()
        assert isinstance(trace, Trace)
        result = x * trace.lift(self.arrays["conv1.weight"]) + y
        return result + 1.0 if self.training else result


@pytest.fixture
def model() -> Scaled:
    weight = meta.array([2.0, 3.0])
    weight.requires_grad = True
    return Scaled({"conv1.weight": weight, "0.mean": meta.array([0.0])}, ["data", "input.1"])


X, Y = meta.array([1.0, 10.0]), meta.array([0.5, 0.5])


def test_state_has_the_names_of_the_source(model: Scaled) -> None:
    assert list(model.state()) == ["conv1.weight", "0.mean"]
    assert list(dict(model.named_parameters())) == ["conv1.weight"]
    model.load_state_dict({"conv1.weight": [0.0, 1.0]}, strict=False)
    assert model(X, Y).numpy().tolist() == [0.5, 10.5]


def test_an_outer_model_sees_the_same_names(model: Scaled) -> None:
    outer = meta.model.Sequential(model)
    assert [n.partition("0.")[2] for n in outer.state()] == ["conv1.weight", "0.mean"]


def test_inputs_by_position_and_by_name(model: Scaled) -> None:
    want = [2.5, 30.5]
    assert model(X, Y).numpy().tolist() == want
    assert model(data=X, in1=Y).numpy().tolist() == want
    assert model(*model.arguments({"input.1": Y, "data": X})).numpy().tolist() == want
    with pytest.raises(meta.errors.ArgumentError, match=r"data, in1"):
        model(X)
    with pytest.raises(meta.errors.ArgumentError, match="no input 'date'"):
        model.arguments({"date": X})
    with pytest.raises(meta.errors.ArgumentError, match=r"'input\.1' is missing"):
        model.arguments({"data": X})


def test_it_is_compiled_trained_and_copied_like_any_model(model: Scaled) -> None:
    assert not model.training
    run = meta.vm.compile(model, X, Y)
    assert run(X, in1=Y).numpy().tolist() == [2.5, 30.5]
    model.train()
    assert model(X, Y).numpy().tolist() == [3.5, 31.5]
    twin = copy.deepcopy(model)
    step = meta.optim.with_sgd(0.5)(model)
    step(meta.array([1.0, 1.0]), X, Y)
    assert model.state()["conv1.weight"].numpy().tolist() == [1.5, -2.0]
    assert twin.state()["conv1.weight"].numpy().tolist() == [2.0, 3.0]
    gradients = meta.model.value_and_grad(model)(meta.array([1.0, 1.0]), X, Y)[1]
    assert gradients["conv1.weight"].numpy().tolist() == [1.0, 10.0]


def test_names_that_are_repeated() -> None:
    model = Scaled({}, ["x", "x"])
    assert model.arguments({"x_1": Y, "x_0": X}) == (X, Y)
    assert keywords(["in1", "a.b", "class", "x", "x"]) == ["in1", "in1_", "in2", "in3", "in4"]


def test_an_input_may_be_called_self() -> None:
    assert Scaled({"conv1.weight": X}, ["self", "y"])(in0=X, y=Y).numpy().tolist() == [1.5, 100.5]
