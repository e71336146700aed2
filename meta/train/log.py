"""Logs of a run: CSV and JSONL files, and the interface of others. TensorBoard among them.

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
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from meta.base.errors import ArgumentError, FormatError
from meta.base.files import read_file, writing

Row = dict[str, float]

TRAINING = ("step", "time", "epoch", "loss", "learning_rate", "samples_per_second")


def columns(metrics: Iterable[str]) -> tuple[str, ...]:
    """Return all columns of a run's log."""
    return (*TRAINING, *(f"eval.{name}" for name in ("loss", *metrics)))


@runtime_checkable
class Logger(Protocol):
    """What `fit` tells the numbers of a run."""

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
        part = self.path.with_name(f".{self.path.name}.part")
        try:
            with open(part, "w", encoding="utf-8", newline="") as file:
                file.write(self._head())
                file.writelines(kept)
            os.replace(part, self.path)
            self._file = open(self.path, "a", encoding="utf-8", newline="")  # noqa: SIM115
        except OSError as error:
            raise ArgumentError("the log cannot be written", found=str(error)) from error

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
    """

    def _head(self) -> str:
        return _csv(self._columns)

    def _line(self, row: Row) -> str:
        return _csv([row.get(c, "") for c in self._columns])

    def _step(self, line: str) -> int:
        return int(next(csv.reader([line]))[self._columns.index("step")])


class JSONLog(FileLog):
    """Rows as JSON objects, one per line. JSON has no numbers but finite ones: others are null."""

    def _line(self, row: Row) -> str:
        return json.dumps({k: v if math.isfinite(v) else None for k, v in row.items()}) + "\n"

    def _step(self, line: str) -> int:
        return int(json.loads(line)["step"])


_BY_SUFFIX: dict[str, type[FileLog]] = {".csv": CSVLog, ".jsonl": JSONLog}


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
        return [made(log)]
    if isinstance(log, Logger):
        return [log]
    raise ArgumentError(
        "this is no log",
        expected="a path that ends in .csv or .jsonl, a logger, or a list of them",
        found=type(log).__name__,
    )


def _csv(values: Iterable[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(values)
    return line.getvalue()


_APART = ("step", "time")


class TensorBoard:
    """Writes the numbers of a run as scalars into a folder of event files.

    Raises ArgumentError if the package ``tensorboard`` is missing.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = os.fspath(folder)
        try:
            self._make: Any = import_module("torch.utils.tensorboard").SummaryWriter
        except ImportError as error:
            raise ArgumentError(
                "TensorBoard is not installed",
                found=str(error),
                hint="pip install tensorboard, or log to a .csv or .jsonl file",
            ) from error
        self._writer: Any = None

    def open(self, columns: Sequence[str], step: int) -> None:
        """Begin; TensorBoard leaves out what an earlier part of the run wrote for later steps."""
        with writing(self.folder):
            self._writer = self._make(self.folder, purge_step=step + 1)

    def write(self, row: Row) -> None:
        """Add one scalar per column."""
        for name, value in row.items():
            if name not in _APART:
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
