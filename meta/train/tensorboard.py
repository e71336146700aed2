"""A log that TensorBoard shows. The package ``tensorboard`` must be installed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from meta.base.errors import ArgumentError
from meta.base.files import writing
from meta.train.log import Row

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
