"""Logs: rows that parse, columns that are known, and what is left of them when a run goes on."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meta.base.errors import ArgumentError, FileError, FormatError
from meta.optim import with_sgd
from meta.optim.schedule import linear_decay
from meta.train import Accuracy, Callback, Run, TensorBoard, fit
from meta.train.log import CSVLog, JSONLog, columns
from tests.train.problem import DATA, held_out, loss, network, optimizer

COLUMNS = ["step", "time", "epoch", "loss", "learning_rate", "samples_per_second", "eval.loss",
           "eval.accuracy"]  # fmt: skip


def train(log: Any, steps: int, **options: Any) -> Any:
    return fit(
        network(),
        loss,
        DATA["batches"](),
        optimizer(),
        steps=steps,
        log=log,
        eval_data=held_out(),
        metrics={"accuracy": Accuracy()},
        schedule=linear_decay(10),
        executor="interpreter",
        seed=1,
        **options,
    )


def csv_rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def json_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_rows(tmp_path: Path) -> None:
    record = train([tmp_path / "log.csv", tmp_path / "log.jsonl"], 7)
    rows, same = csv_rows(tmp_path / "log.csv"), json_rows(tmp_path / "log.jsonl")
    assert list(rows[0]) == COLUMNS
    assert [{k: float(v) for k, v in row.items() if v} for row in rows] == same
    steps = [row for row in same if "loss" in row]
    assert [row["step"] for row in steps] == list(range(1, 8))
    assert [row["loss"] for row in steps] == record.losses
    assert [row["epoch"] for row in steps] == [0] * 5 + [1] * 2
    rates = [0.1 * (1 - i / 10) for i in range(7)]
    assert [row["learning_rate"] for row in steps] == pytest.approx(rates)
    assert all(row["samples_per_second"] > 0 for row in steps)
    found = [row for row in same if "eval.loss" in row]
    assert [(r["step"], r["eval.loss"], r["eval.accuracy"]) for r in found] == [
        (e["step"], e["loss"], e["accuracy"]) for e in record.evaluations
    ]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_resumed_run_goes_on_with_its_log(kind: str, tmp_path: Path) -> None:
    def steps(path: Path) -> list[tuple[int, str]]:
        rows: Any = csv_rows(path) if kind == "csv" else json_rows(path)
        return [(int(row["step"]), str(row["loss"])) for row in rows if row.get("loss")]

    whole, log = tmp_path / f"whole.{kind}", tmp_path / f"log.{kind}"
    train(whole, 9)
    train(log, 4, checkpoint=tmp_path / "run")
    with open(log, "a", encoding="utf-8") as file:
        # A killed run went further than its checkpoint, and was cut off while it wrote.
        rows = whole.read_text("utf-8").splitlines(keepends=True)
        file.write("".join(rows[5:8]) + rows[8][:7])
    train(log, 9, checkpoint=tmp_path / "run")
    assert steps(log) == steps(whole)
    train(log, 2)  # another run, from the beginning
    assert [step for step, _ in steps(log)] == [1, 2]


def test_not_every_step(tmp_path: Path) -> None:
    record = train(tmp_path / "log.csv", 7, log_every=3)
    steps = [row for row in csv_rows(tmp_path / "log.csv") if row["loss"]]
    assert [(int(r["step"]), float(r["loss"])) for r in steps] == [
        (3, record.losses[2]), (6, record.losses[5]),
    ]  # fmt: skip


def test_the_learning_rate_without_a_schedule(tmp_path: Path) -> None:
    fit(
        network(), loss, held_out(), with_sgd(0.25), steps=2, log=tmp_path / "log.csv",
        executor="interpreter",
    )  # fmt: skip
    assert {row["learning_rate"] for row in csv_rows(tmp_path / "log.csv")} == {"0.25"}


def test_a_learning_rate_that_a_callback_changes(tmp_path: Path) -> None:
    class Halves(Callback):
        def on_step(self, run: Run) -> None:
            rate = run.training_step.lr
            rate.update(rate.item() / 2)

    fit(
        network(), loss, held_out(), with_sgd(0.5), steps=3, log=tmp_path / "log.csv",
        executor="interpreter", callbacks=[Halves()],
    )  # fmt: skip
    rates = [row["learning_rate"] for row in csv_rows(tmp_path / "log.csv") if row["loss"]]
    assert rates == ["0.5", "0.25", "0.125"]


@pytest.mark.parametrize(
    ("kind", "text"),
    [("csv", b"\xff\xfe\n"), ("csv", b"a,b\n1,2\n"), ("csv", ",".join(COLUMNS).encode() + b"\nx\n"),
     ("jsonl", b"{}\n"), ("jsonl", b"[1]\n"), ("jsonl", b"text\n")],
)  # fmt: skip
def test_a_file_of_something_else(kind: str, text: bytes, tmp_path: Path) -> None:
    log = tmp_path / f"log.{kind}"
    train(None, 1, checkpoint=tmp_path / "run")
    log.write_bytes(text)
    with pytest.raises(FormatError, match="is not the log of this run"):
        train(log, 2, checkpoint=tmp_path / "run")
    assert log.read_bytes() == text


def test_values_that_json_has_not(tmp_path: Path) -> None:
    for log in (JSONLog(tmp_path / "log.jsonl"), CSVLog(tmp_path / "log.csv")):
        log.open(columns(()), 0)
        log.write({"step": 1, "loss": float("nan")})
        log.flush()
        log.close()
        log.close()
    assert (tmp_path / "log.jsonl").read_text() == '{"step": 1, "loss": null}\n'
    assert csv_rows(tmp_path / "log.csv")[0]["loss"] == "nan"


class Remembers:
    """A logger of one's own."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def open(self, columns: Sequence[str], step: int) -> None:
        self.calls.append(("open", list(columns), step))

    def write(self, row: dict[str, float]) -> None:
        self.calls.append(row["step"])

    def flush(self) -> None:
        self.calls.append("flush")

    def close(self) -> None:
        self.calls.append("close")


def test_a_logger_of_ones_own(tmp_path: Path) -> None:
    logger = Remembers()
    train(logger, 2, checkpoint=tmp_path)
    assert logger.calls == [("open", COLUMNS, 0), 1, 2, 2, "flush", "close"]
    logger = Remembers()
    with pytest.raises(ArgumentError):
        fit(network(), loss, [(1, 2)], optimizer(), steps=1, log=[logger], executor="interpreter")
    assert logger.calls[-1] == "close"


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    log = CSVLog(tmp_path / "no" / "log.csv")
    with pytest.raises(FileError, match="cannot be written"):
        log.open(columns(()), 0)


def test_tensorboard_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ArgumentError, match=r"tensorboard.* is not installed"):
        TensorBoard(tmp_path)


def test_what_tensorboard_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[Any] = []

    class Writer:
        def __init__(self, folder: str, purge_step: int) -> None:
            calls.append((folder, purge_step))

        def add_scalar(self, tag: str, value: float, step: int, walltime: float) -> None:
            calls.append((tag, value, step))

        def flush(self) -> None:
            calls.append("flush")

        def close(self) -> None:
            calls.append("close")

    module = SimpleNamespace(SummaryWriter=Writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    record = train(TensorBoard(tmp_path), 1)
    assert calls[0] == (str(tmp_path), 1) and calls[-1] == "close"
    assert ("train/loss", record.losses[0], 1) in calls
    assert ("eval/accuracy", record.metrics["accuracy"], 1) in calls


def test_tensorboard_itself(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record = train(TensorBoard(tmp_path), 3)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [e.value for e in events.Scalars("train/loss")] == pytest.approx(record.losses)
