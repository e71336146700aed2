"""Callbacks: when they are called, how they end a run, and what is kept of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from meta import op
from meta.base.errors import FormatError
from meta.train import (
    Batches,
    Callback,
    EarlyStop,
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
