"""Callbacks: when they are called, how they end a run, and what is kept of them."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.base.errors import FormatError
from meta.train import (
    Batches,
    Callback,
    EarlyStop,
    ReduceOnPlateau,
    Run,
)
from tests.train.problem import (
    arrays,
    held_out,
    train,
)

PER_EPOCH = 5


def test_callbacks_are_told_and_may_stop() -> None:
    events: list[str] = []

    class Tells(Callback):
        def on_begin(self, run: Run) -> None:
            events.append(f"begin at {run.step}")

        def on_step(self, run: Run) -> None:
            events.append(f"step {run.step}")
            assert math.isfinite(run.last_loss)

        def on_evaluation(self, run: Run, metrics: dict[str, float]) -> None:
            events.append(f"evaluation {sorted(metrics)}")

        def on_epoch(self, run: Run) -> None:
            events.append(f"epoch {run.epoch}")
            if run.epoch == 2:
                run.stop("enough")

        def on_end(self, run: Run) -> None:
            events.append(f"end: {run.record.stopped}")

    data = Batches(*arrays(), 20)
    record = train(data=data, epochs=9, eval_data=held_out(), callbacks=[Tells()])
    assert record.stopped == "enough" and record.step == 4
    found = "evaluation ['loss']"
    assert events == [
        "begin at 0", "step 1", "step 2", found, "epoch 1", "step 3", "step 4", found, "epoch 2",
        "end: enough",
    ]  # fmt: skip


def test_early_stop_and_its_state(tmp_path: Path) -> None:
    def rising(result: Any, labels: Any) -> Any:
        return op.multiply(op.mean(op.multiply(result, 0.0)), 1.0)  # never better than at first

    options: dict[str, Any] = {
        "eval_data": held_out(),
        "metrics": {"same": rising},
        "eval_every": 2,
        "checkpoint": tmp_path,
        "seed": 1,
    }
    first = train(steps=5, callbacks=[EarlyStop(3, "same", larger=True)], **options)
    assert first.stopped == "5 steps are done"
    # The evaluations at 2 (the best), 4 and 5 (two without improvement) are remembered.
    stop = EarlyStop(3, "same", larger=True)
    record = train(steps=50, callbacks=[stop], **options)
    assert record.step == 6 and "same has not become better in 3" in record.stopped
    again = train(steps=50, callbacks=[EarlyStop(3, "same", larger=True)], **options)
    assert again.step == 6 and again.stopped == record.stopped  # it had ended
    with pytest.raises(FormatError, match="the callbacks are others"):
        train(steps=50, **options)


def test_early_stop_restores_the_best_model() -> None:
    evaluated: list[dict[str, Any]] = []
    ends: list[dict[str, Any]] = []

    def state(run: Run) -> dict[str, Any]:
        return {n: x.numpy().copy() for n, x in run.model.state().items()}

    class Watch(Callback):
        def on_evaluation(self, run: Run, metrics: dict[str, float]) -> None:
            metrics["best"] = float(len(evaluated) == 2)  # two watch: the second evaluation
            evaluated.append(state(run))

        def on_end(self, run: Run) -> None:
            ends.append(state(run))

    stop = EarlyStop(3, "best", larger=True, restore_best=True)
    record = train(
        steps=50, eval_data=held_out(), eval_every=2, seed=1, callbacks=[Watch(), stop, Watch()]
    )
    assert record.step == 10 and stop.best == 1.0
    other = EarlyStop(3, "best", larger=True, restore_best=True)
    other.load_state(stop.state())
    for name, best in evaluated[2].items():
        assert not (best == evaluated[-1][name]).all()
        for found in (ends[1][name], other.state()["model"][name].numpy()):
            assert (found == best).all()
    with pytest.raises(FormatError, match="no best model"):
        other.load_state({"best": 0.5, "waited": 1})  # as it was before there was restore_best
    stop = EarlyStop(3, "best", larger=True)
    stop.load_state({"best": 0.5, "waited": 1})
    assert (stop.best, stop.waited) == (0.5, 1)


VALUES = [
    5.0,
    4.0,
    4.5,
    4.2,
    4.1,
    4.05,
    3.99,
    4.0,
    4.0,
    4.0,
    4.0,
    math.nan,
    4.0,
    2.0,
    2.0,
    2.1,
    2.2,
]


@pytest.mark.parametrize(
    "options",
    [
        {"patience": 1},
        {"patience": 2, "cooldown": 2},
        {"patience": 1, "larger": True, "minimum": 0.02},
        {"patience": 2, "least": 0.3, "factor": 0.5},
    ],
    ids=str,
)
def test_a_plateau_is_torchs(options: dict[str, Any]) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer,
        mode="max" if options.get("larger") else "min",
        factor=options.get("factor", 0.1),
        patience=options["patience"],
        threshold=options.get("least", 0.0),
        threshold_mode="abs",
        cooldown=options.get("cooldown", 0),
        min_lr=options.get("minimum", 0.0),
        eps=0.0,
    )
    rate = meta.array(0.1)
    run: Any = SimpleNamespace(training_step=SimpleNamespace(lr=rate))
    callback = ReduceOnPlateau(**options)
    for i, value in enumerate(VALUES):
        if i == len(VALUES) // 2:  # another object goes on from what a checkpoint keeps
            before, callback = callback, ReduceOnPlateau(**options)
            callback.load_state(before.state())
        theirs.step(value)
        callback.on_evaluation(run, {"loss": value})
        assert rate.item() == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-5)


def test_a_run_trains_with_the_reduced_rate(tmp_path: Path) -> None:
    def same(result: Any, labels: Any) -> Any:
        return op.mean(op.multiply(result, 0.0))

    reduce = ReduceOnPlateau(0.5, 1, "same")
    record = train(steps=5, eval_data=held_out(), eval_every=1, metrics={"same": same},
                   callbacks=[reduce], log=tmp_path / "log.jsonl")  # fmt: skip
    # The first evaluation is the best one; the third and the fifth are one too many.
    assert record.training_step.lr.item() == pytest.approx(0.1 * 0.25)
    rates = [float(line.split('"learning_rate": ')[1].split(",")[0])
             for line in (tmp_path / "log.jsonl").read_text("utf-8").splitlines()
             if "learning_rate" in line]  # fmt: skip
    assert rates == pytest.approx([0.1, 0.1, 0.1, 0.05, 0.05])
