"""Pictures of learning curves: what they show, and what they need."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meta.base.errors import ArgumentError
from meta.optim.schedule import linear_decay
from meta.train import Accuracy, Callback, Curves, Run
from tests.train.problem import held_out, train

BEGINNING = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


def run(log: Any, steps: int, **options: Any) -> Any:
    return train(
        steps=steps,
        log=log,
        eval_data=held_out(),
        metrics={"accuracy": Accuracy()},
        schedule=linear_decay(20),
        seed=1,
        **options,
    )


def lines(curves: Curves) -> dict[str, list[tuple[list[float], list[float]]]]:
    """Return the curves of a picture by panel."""
    return {
        ax.get_ylabel(): [(list(line.get_xdata()), list(line.get_ydata())) for line in ax.lines]
        for ax in curves.figure().axes
    }


@pytest.mark.parametrize("kind", BEGINNING)
def test_a_path_is_a_picture(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run(tmp_path / f"curves.{kind}", 3)
    assert (tmp_path / f"curves.{kind}").read_bytes().startswith(BEGINNING[kind])
    assert {p.name for p in tmp_path.iterdir()} == {f"curves.{kind}", f"curves.{kind}.jsonl"}


def test_what_is_shown(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    curves = Curves(tmp_path / "curves.png")
    record = run(curves, 8)
    found = lines(curves)
    assert list(found) == ["loss", "accuracy", "learning rate"]
    training, evaluation = found["loss"]
    assert training == (list(range(1, 9)), record.losses)
    steps = [e["step"] for e in record.evaluations]
    assert evaluation == (steps, [e["loss"] for e in record.evaluations])
    assert found["accuracy"] == [(steps, [e["accuracy"] for e in record.evaluations])]
    ((_, rates),) = found["learning rate"]
    np.testing.assert_allclose(rates, [0.1 * (1 - i / 20) for i in range(8)])


def test_a_resumed_run_goes_on_with_its_curves(tmp_path: Path) -> None:
    """In the folder of its checkpoints."""
    pytest.importorskip("matplotlib")
    path, whole = tmp_path / "run" / "curves.png", Curves(tmp_path / "whole.png")
    run(whole, 9)
    run(path, 4, checkpoint=tmp_path / "run")
    curves = Curves(path)
    run(curves, 9, checkpoint=tmp_path / "run")
    found, wanted = lines(curves), lines(whole)
    assert found["loss"][0] == wanted["loss"][0]
    # The first part was evaluated at its end, too.
    assert found["loss"][1][0] == [4, *wanted["loss"][1][0]]
    other = Curves(path)
    run(other, 2)
    assert lines(other)["loss"][0][0] == [1, 2]


def test_it_is_drawn_while_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("meta.train.log.REDRAW_SECONDS", 0.0)
    path = tmp_path / "curves.png"
    there: list[bool] = []

    class Looks(Callback):
        def on_step(self, run: Run) -> None:
            there.append(path.exists())

    run(path, 5, checkpoint=tmp_path / "run", checkpoint_every=2, callbacks=[Looks()])
    assert there == [False, False, True, True, True]


def test_a_run_that_fails_leaves_its_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")

    class Fails(Callback):
        def on_step(self, run: Run) -> None:
            if run.step == 6:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(tmp_path / "curves.png", 9, callbacks=[Fails()])
    assert (tmp_path / "curves.png").exists()


def test_large_and_undefined_losses(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    curves = Curves(tmp_path / "curves.png")
    curves.open(("step", "loss"), 0)
    for step, value in enumerate((1000.0, 1.0, float("nan"), float("inf")), 1):
        curves.write({"step": step, "time": 0.0, "loss": value, "learning_rate": 0.1})
    curves.close()
    assert curves.figure().axes[0].get_yscale() == "log"
    rows = [json.loads(x) for x in (tmp_path / "curves.png.jsonl").read_text().splitlines()]
    assert [row["loss"] for row in rows] == [1000, 1, None, None]


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ArgumentError, match=r"matplotlib, which draws[^$]*pip install matplotlib"):
        run(tmp_path / "curves.png", 3)
    assert not list(tmp_path.iterdir())
