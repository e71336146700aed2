"""Logs of a run: CSV and JSONL files, pictures of learning curves, and the interface of others,
TensorBoard among them.

A row is a dict of numbers by column; ``step`` is always there, and ``time``, in seconds since 1970.
Rows of training steps have ``epoch``, ``loss``, ``learning_rate`` and ``samples_per_second``, those
of evaluations ``eval.loss`` and ``eval.<metric>``, and of runs that keep an average of the
parameters ``eval.average``: 1 where it was evaluated, 0 where the parameters were.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from meta.base.errors import ArgumentError, FormatError
from meta.base.files import read_file, replacing, writing
from meta.base.optional import optional_module

Row = dict[str, float]

TRAINING_COLUMNS = ("step", "time", "epoch", "loss", "learning_rate", "samples_per_second")


def columns(metrics: Iterable[str]) -> tuple[str, ...]:
    """Return all columns of a run's log."""
    return (*TRAINING_COLUMNS, *(f"eval.{name}" for name in ("loss", *metrics)))


@runtime_checkable
class Logger(Protocol):
    """What `fit` tells the numbers of a run.

    >>> class Last:
    ...     def open(self, columns, step): ...
    ...     def write(self, row):
    ...         self.row = row
    ...     def flush(self): ...
    ...     def close(self): ...
    >>> net, x, log = meta.model.Linear(1, 1), meta.ones((4, 1)), Last()
    >>> data, sgd = meta.train.Batches(x, x, 2), meta.optim.with_sgd()
    >>> record = meta.train.fit(net, meta.mse_loss, data, sgd, epochs=2, log=log)
    >>> isinstance(log, meta.train.Logger), log.row["step"], log.row["loss"] == record.losses[-1]
    (True, 4, True)
    """

    def open(self, columns: Sequence[str], step: int) -> None:
        """Begin: ``step`` steps are done already, and what is known of later ones goes."""

    def write(self, row: Row) -> None:
        """Take a row."""

    def flush(self) -> None:
        """Make what was written so far visible to others."""

    def close(self) -> None:
        """End; called once, also after an error."""


class FileLog:
    """A log file of rows; see `CSVLog` and `JSONLog`.

    A run that begins at step 0 replaces the file; one that is resumed keeps the rows of the steps
    that it does not repeat.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file: io.TextIOWrapper | None = None
        self._columns: Sequence[str] = ()

    def open(self, columns: Sequence[str], step: int) -> None:
        """Begin, or go on; FormatError if the file is not such a log."""
        self._columns = columns
        kept = self._kept(step) if step and self.path.exists() else []
        with replacing(self.path) as part:
            part.write_text(self._head() + "".join(kept), encoding="utf-8", newline="")
        with writing(self.path):
            self._file = open(self.path, "a", encoding="utf-8", newline="")  # noqa: SIM115

    def write(self, row: Row) -> None:
        """Append a row; FileError if the disk is full."""
        assert self._file is not None
        with writing(self.path):
            self._file.write(self._line(row))

    def flush(self) -> None:
        """Hand what was written to the system; FileError if the disk is full."""
        assert self._file is not None
        with writing(self.path):
            self._file.flush()

    def close(self) -> None:
        """Close the file; FileError if what was written last does not fit on the disk."""
        file, self._file = self._file, None
        if file is not None:
            with writing(self.path):
                file.close()

    def _kept(self, step: int) -> list[str]:
        """Return the lines of steps up to ``step``; the last line may have been cut off."""
        try:
            lines = io.StringIO(read_file(self.path).decode(), newline="").readlines()
            if lines and not lines[-1].endswith("\n"):
                lines.pop()
            head = self._head()
            if head and lines and lines[0] != head:
                raise ValueError(f"its columns are {lines[0].strip()}")
            return [line for line in lines[bool(head) :] if self._step(line) <= step]
        except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
            raise FormatError(
                f"{self.path} is not the log of this run",
                expected=f"rows with the columns {', '.join(self._columns)}",
                found=str(error),
                hint="give another path, or remove it",
            ) from error

    def _head(self) -> str:
        return ""

    def _line(self, row: Row) -> str:
        raise NotImplementedError

    def _step(self, line: str) -> int:
        raise NotImplementedError


class CSVLog(FileLog):
    """Rows as comma-separated values; the first line names the columns, an absent value is
    empty.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     log = meta.train.CSVLog(f"{folder}/run.csv")
    ...     log.open(("step", "loss"), 0)
    ...     log.write({"step": 1, "loss": 0.5})
    ...     log.close()
    ...     log.path.read_text("utf-8").splitlines()
    ['step,loss', '1,0.5']
    """

    def _head(self) -> str:
        return _csv(self._columns)

    def _line(self, row: Row) -> str:
        return _csv([row.get(c, "") for c in self._columns])

    def _step(self, line: str) -> int:
        return int(next(csv.reader([line]))[self._columns.index("step")])


class JSONLog(FileLog):
    """Rows as JSON objects, one per line. JSON has no numbers but finite ones: others are null.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     log = meta.train.JSONLog(f"{folder}/run.jsonl")
    ...     log.open(("step", "loss"), 0)
    ...     log.write({"step": 1, "loss": float("nan")})
    ...     log.close()
    ...     log.path.read_text("utf-8").splitlines()
    ['{"step": 1, "loss": null}']
    """

    def _line(self, row: Row) -> str:
        return json.dumps({k: v if math.isfinite(v) else None for k, v in row.items()}) + "\n"

    def _step(self, line: str) -> int:
        return int(json.loads(line)["step"])


REDRAW_SECONDS = 30.0
"""While a run goes on, its curves are drawn this often at most."""


class Curves:
    """Draws the learning curves of a run as a picture (.png, .svg or .pdf): the losses, each metric
    and the learning rate over the steps. It is drawn when a checkpoint is written, and at the end,
    also of a run that fails.

    The numbers are kept beside the picture, in a `JSONLog` called as it with ".jsonl" behind, so
    that a run that is resumed goes on with its curves.

    Raises ArgumentError if the package ``matplotlib`` is missing.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     curves = meta.train.Curves(f"{folder}/run.png")
    ...     curves.open(("step", "loss"), 0)
    ...     for step in range(1, 4):
    ...         curves.write({"step": step, "loss": 1.0 / step})
    ...     curves.close()
    ...     Path(f"{folder}/run.png").read_bytes()[1:4]
    b'PNG'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        instead = ", or log to a .csv or .jsonl file"
        library = optional_module("matplotlib.figure", "draws learning curves", instead=instead)
        self._make: Any = library.Figure
        self._numbers = JSONLog(self.path.with_name(f"{self.path.name}.jsonl"))
        self._curves: dict[str, tuple[array[float], array[float]]] = {}
        self._drawn = 0.0

    def open(self, columns: Sequence[str], step: int) -> None:
        """Begin, or go on with the numbers of the steps before."""
        self._numbers.open(columns, step)
        self._curves = {}
        for line in read_file(self._numbers.path).decode().splitlines() if step else ():
            self._take(json.loads(line))
        self._drawn = time.monotonic()

    def write(self, row: Row) -> None:
        """Take a row."""
        self._numbers.write(row)
        self._take(row)

    def flush(self) -> None:
        """Hand what was written to the system, and draw it, if that was not done just now."""
        self._numbers.flush()
        if time.monotonic() - self._drawn >= REDRAW_SECONDS:
            self._draw()

    def close(self) -> None:
        """Draw the picture."""
        self._numbers.close()
        if self._curves:
            self._draw()

    def figure(self) -> Any:
        """Return the picture as a matplotlib Figure."""
        shared = {"loss": ("loss", "eval.loss")}
        metrics = [n for n in self._curves if n.startswith("eval.") and n not in SHARED_PANELS]
        panels = {**shared, **{n.removeprefix("eval."): (n,) for n in metrics}}
        panels["learning rate"] = ("learning_rate",)
        figure = self._make(figsize=(8, 2.6 * len(panels)), layout="constrained")
        axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for ax, (title, names) in zip(axes, panels.items(), strict=True):
            present = [n for n in names if n in self._curves]
            for name in present:
                steps, values = self._curves[name]
                evaluated = name.startswith("eval.")
                style = {"marker": "o", "markersize": 3} if evaluated else {"linewidth": 1}
                label = "evaluation" if evaluated else "training"
                ax.plot(list(steps), list(values), label=label, **style)
            known = [v for n in present for v in self._curves[n][1] if math.isfinite(v)]
            if title == "loss" and known and min(known) > 0 and max(known) > 100 * min(known):
                ax.set_yscale("log")
            if len(present) > 1:
                ax.legend()
            ax.set_ylabel(title)
            ax.grid(alpha=0.3)
        axes[-1].set_xlabel("step")
        return figure

    def _take(self, row: Mapping[str, float | None]) -> None:
        step = row["step"]
        assert step is not None
        for name, value in row.items():
            if name in ("loss", "learning_rate") or name.startswith("eval."):
                steps, values = self._curves.setdefault(name, (array("d"), array("d")))
                steps.append(step)
                values.append(math.nan if value is None else value)

    def _draw(self) -> None:
        with replacing(self.path) as part:
            self.figure().savefig(part, format=self.path.suffix[1:], dpi=120)
        self._drawn = time.monotonic()


SHARED_PANELS = ("eval.loss", "eval.average")
"""What has no panel of its own."""

_BY_SUFFIX: dict[str, Callable[[Path], Logger]] = {
    ".csv": CSVLog,
    ".jsonl": JSONLog,
    **dict.fromkeys((".png", ".svg", ".pdf"), Curves),
}


def loggers(log: Any) -> list[Logger]:
    """Return the loggers that ``fit(log=)`` means: a path, a logger, or several of them."""
    if log is None:
        return []
    if isinstance(log, tuple | list):
        return [logger for one in log for logger in loggers(one)]
    if isinstance(log, str | os.PathLike):
        made = _BY_SUFFIX.get(Path(log).suffix)
        if made is None:
            raise ArgumentError(
                "the kind of log is told by the end of its name",
                expected=" or ".join(_BY_SUFFIX),
                found=os.fspath(log),
                hint="meta.train.TensorBoard(folder) writes for TensorBoard",
            )
        if not Path(log).parent.is_dir():
            raise ArgumentError("there is no such folder", found=str(Path(log).parent))
        return [made(Path(log))]
    if isinstance(log, Logger):
        return [log]
    raise ArgumentError(
        "this is no log",
        expected=f"a path that ends in {' or '.join(_BY_SUFFIX)}, a logger, or a list of them",
        found=type(log).__name__,
    )


def _csv(values: Iterable[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(values)
    return line.getvalue()


_NOT_SCALARS = ("step", "time")


class TensorBoard:
    """Writes the numbers of a run as scalars into a folder of event files.

    Raises ArgumentError if the package ``tensorboard`` is missing.

    `fit` takes it as ``log=meta.train.TensorBoard("runs/first")``.

    >>> issubclass(meta.train.TensorBoard, meta.train.Logger)
    True
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = os.fspath(folder)
        self._make: Any = optional_module(
            "torch.utils.tensorboard",
            "writes files of events",
            library="tensorboard",
            instead=", or log to a .csv or .jsonl file",
        ).SummaryWriter
        self._writer: Any = None

    def open(self, columns: Sequence[str], step: int) -> None:
        """Begin; TensorBoard leaves out what an earlier part of the run wrote for later steps."""
        with writing(self.folder):
            self._writer = self._make(self.folder, purge_step=step + 1)

    def write(self, row: Row) -> None:
        """Add one scalar per column."""
        for name, value in row.items():
            if name not in _NOT_SCALARS:
                tag = name.replace(".", "/") if "." in name else f"train/{name}"
                self._writer.add_scalar(tag, value, int(row["step"]), walltime=row["time"])

    def flush(self) -> None:
        """Write what is pending."""
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
