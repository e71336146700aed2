"""Runs whose loss, gradients or data are not finite: how they end, and what is said of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meta import op
from meta.base import config
from meta.base.errors import NonFiniteError
from meta.optim import DynamicLossScale, with_sgd
from meta.train import read_checkpoint
from tests.train.problem import arrays, network, train, weights


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match="the loss of step") as caught:
        train(steps=50, optimizer=with_sgd(1e30), checkpoint=tmp_path, checkpoint_every=1)
    assert "META_DEBUG_NANS=inf" in str(caught.value)
    for folder in tmp_path.glob("step-*"):  # nothing that is not finite was kept
        kept = read_checkpoint(folder)
        assert all(t.isfinite().all() for t in kept.model.values())


def test_data_that_are_no_numbers_are_told() -> None:
    x, y = arrays()
    x[3, 1] = math.nan
    with pytest.raises(NonFiniteError, match=r"step 1 is not finite[^$]*NaN in the data"):
        train(data=[(x, y)], steps=3)


def test_no_checkpoint_of_weights_that_are_not_finite(tmp_path: Path) -> None:
    def steep(scores: Any, labels: Any) -> Any:
        return op.mean(op.sqrt(op.multiply(scores, 0.0)))  # it is 0, and its slope is not finite

    with pytest.raises(NonFiniteError, match="parameters are not finite behind step 1"):
        train(loss=steep, steps=3, checkpoint=tmp_path, checkpoint_every=1)
    assert not list(tmp_path.glob("step-*"))


@pytest.mark.parametrize("executor", ["interpreter", "vm"])
def test_a_loss_that_never_is_finite_is_traced_to_its_operator(executor: str) -> None:
    def wrong(scores: Any, labels: Any) -> Any:
        return op.mean(op.log(op.multiply(op.abs(scores), 0.0)))

    scaled = with_sgd(0.1, loss_scale=DynamicLossScale(max_bad_steps=4))
    model = network()
    before = weights(model)["0.weight"]
    with pytest.raises(NonFiniteError) as caught:
        train(
            model, loss=wrong, steps=60, optimizer=scaled, executor=executor, checkpoint_every=None
        )
    error = caught.value
    assert error.op == "log" and "test_diverged.py" in str(error.span)
    assert "4 steps in a row had gradients that are not finite, up to step 4" in str(error)
    assert np.array_equal(weights(model)["0.weight"], before)


def test_an_overflow_is_left_out_and_training_goes_on() -> None:
    scale = DynamicLossScale(init=2.0**127, growth_interval=1000)
    record = train(epochs=12, optimizer=with_sgd(0.1, 0.9, loss_scale=scale), seed=6)
    own = record.training_step.loss_scale
    assert own is not None and own.scale.item() < 2.0**127
    assert record.losses[-1] < record.losses[0]


def test_check_finite_names_the_operator_in_a_run() -> None:
    def wrong(scores: Any, labels: Any) -> Any:
        return op.mean(op.sqrt(op.subtract(scores, 100.0)))

    with config.override(META_DEBUG_NANS="inf"), pytest.raises(NonFiniteError) as caught:
        train(loss=wrong, steps=2, executor="vm")
    assert caught.value.op == "sqrt"
