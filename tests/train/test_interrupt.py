"""Ctrl-C: a run ends behind a whole step, and what it did is kept."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meta.train import Callback, Run
from tests.train.problem import held_out, network, same, train


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Let Ctrl-C be what it is on a terminal: a shell lets jobs in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Interrupting(Callback):
    """Presses Ctrl-C after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, run: Run) -> None:
        if run.step == self.step:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_keeps_a_checkpoint(tmp_path: Path) -> None:
    undisturbed, resumed = network(), network()
    train(undisturbed, steps=8, seed=1)
    options: dict[str, Any] = {"steps": 8, "seed": 1, "checkpoint": tmp_path}
    with pytest.raises(KeyboardInterrupt, match=r"at step 3; kept in .*step-00000003"):
        train(checkpoint_every=100, callbacks=[Interrupting(3)], **options)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    record = train(resumed, **options)
    assert record.first_step == 3 and same(undisturbed, resumed)


def test_ctrl_c_in_the_data_keeps_a_checkpoint(tmp_path: Path) -> None:
    def interrupted() -> Any:
        yield from list(held_out())[:2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="at step 2; kept in"):
        train(data=interrupted(), steps=5, checkpoint=tmp_path)
    with pytest.raises(KeyboardInterrupt, match=r"at step 2$"):
        train(data=interrupted(), steps=5)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_that_breaks_the_data_is_ctrl_c(tmp_path: Path) -> None:
    def broken() -> Any:
        yield from list(held_out())[:2]
        signal.raise_signal(signal.SIGINT)
        raise RuntimeError("a worker is gone")

    with pytest.raises(KeyboardInterrupt, match="at step 2; kept in"):
        train(data=broken(), steps=5, checkpoint=tmp_path)


@pytest.mark.usefixtures("ctrl_c")
def test_the_second_ctrl_c_is_at_once(tmp_path: Path) -> None:
    class Twice(Callback):
        def on_step(self, run: Run) -> None:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("not reached")

    with pytest.raises(KeyboardInterrupt):
        train(steps=5, callbacks=[Twice()], checkpoint=tmp_path)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_in_the_last_evaluation_keeps_a_checkpoint(tmp_path: Path) -> None:
    class Late(Callback):
        def __init__(self, times: int) -> None:
            self.times = times

        def on_evaluation(self, run: Run, metrics: dict[str, float]) -> None:
            for _ in range(self.times):
                signal.raise_signal(signal.SIGINT)

    for times in (1, 2):  # the first one waits for the evaluation, the second one does not
        options: dict[str, Any] = {
            "steps": 3,
            "eval_data": held_out(),
            "eval_every": 100,
            "checkpoint": tmp_path / str(times),
        }
        with pytest.raises(KeyboardInterrupt, match="at step 3; kept in"):
            train(callbacks=[Late(times)], **options)
        assert train(**options).first_step == 3


def test_what_a_step_interrupted_is_not_kept(tmp_path: Path) -> None:
    class Halfway(Callback):
        def on_begin(self, run: Run) -> None:
            add = run._meter.add

            def interrupted(step: int, *more: Any) -> None:
                if step == 3:  # the weights are new, and the step is not counted
                    raise KeyboardInterrupt
                add(step, *more)

            run._meter.add = interrupted  # type: ignore[method-assign]

    with pytest.raises(KeyboardInterrupt):
        train(steps=5, callbacks=[Halfway()], checkpoint=tmp_path, checkpoint_every=2)
    assert [p.name for p in tmp_path.glob("step-*")] == ["step-00000002"]
