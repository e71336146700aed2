"""`Objective`: a model with its loss is, by names, modes and arrays, the model."""

from __future__ import annotations

from typing import Any

import pytest

import meta
from meta import op
from meta.base.errors import ArgumentError
from meta.model import Dropout, Model, trace
from meta.train.objective import Objective

INPUTS, TARGETS = (meta.array([1.0, 2.0]),), ()


class Scaled(Model):
    """Holds arrays and an inner model directly, and takes older names."""

    not_kept = ("position_ids",)
    renamed = ((r"^gamma$", "weight"),)

    def build(self) -> None:
        self.weight = meta.model.parameter(meta.array([3.0, 4.0]))
        self.layers = [Dropout(0.5)]

    @trace
    def forward(self, x: Any) -> Any:
        return self.layers[0](x * self.weight)


class Summed(Model):
    """A loss with a parameter, and a name of its own that it does not keep."""

    not_kept = ("version",)

    def build(self) -> None:
        self.factor = meta.model.parameter(meta.array(2.0))

    @trace
    def forward(self, y: Any) -> Any:
        return op.sum(y) * self.factor


def test_names() -> None:
    objective = Objective(Scaled(), Summed())
    assert list(objective.state()) == ["weight", "loss.factor"]
    left = objective.load_state_dict(
        {"gamma": [5.0, 6.0], "loss.factor": 1.0, "position_ids": [0], "loss.version": 3}
    )
    assert left == ((), ())
    assert objective.model.weight.numpy().tolist() == [5.0, 6.0]


def test_modes() -> None:
    model, loss = Scaled(), Summed()
    objective = Objective(model, loss)
    objective.eval()
    assert not any(m.training for m in (objective, model, model.layers[0], loss))
    assert objective(INPUTS, TARGETS).item() == 22.0
    model.train()
    assert objective.training
    assert {objective(INPUTS, TARGETS).item() for _ in range(40)} == {0.0, 12.0, 32.0, 44.0}


def test_arrays_move() -> None:
    model, loss = Scaled(), Summed()
    objective = Objective(model, loss).to(dtype="float64")
    assert model.weight.dtype == loss.factor.dtype == "float64"
    assert set(map(id, objective.state().values())) == {id(model.weight), id(loss.factor)}


def test_a_checkpointed_model_is_traced_anew() -> None:
    model = Scaled()
    objective = Objective(model, Summed())
    objective(INPUTS, TARGETS)
    meta.model.checkpoint(model)
    program = objective.program(INPUTS, TARGETS)
    assert "Scaled" in program.module.functions


def test_the_name_of_the_loss_is_taken() -> None:
    class Taken(Scaled):
        def build(self) -> None:
            self.loss = Summed()

    with pytest.raises(ArgumentError, match="no attribute 'loss'"):
        Objective(Taken(), Summed())
