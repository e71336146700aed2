"""The libraries of models, by name, and the outcome of one of their models.

They are here, and not in the command's own file, because a process of a pool imports by name what
it is to call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from tools.client_models.measure import Outcome, Row, measure

Rows = Mapping[str, Row]


def _transformers(folder: Path | None) -> Rows:
    from tools.client_models.transformers_rows import ROWS

    return ROWS


def _torchvision(folder: Path | None) -> Rows:
    from tools.client_models.vision_rows import torchvision_rows

    return torchvision_rows()


def _timm(folder: Path | None) -> Rows:
    from tools.client_models.vision_rows import timm_rows

    return timm_rows()


def _onnx(folder: Path | None) -> Rows:
    if folder is None:
        raise ImportError("its wheels need a folder, --cache")
    from tools.client_models.onnx_table import ROWS

    return {row.key: replace(row, cache=folder) for row in ROWS}


LIBRARIES: dict[str, Callable[[Path | None], Rows]] = {
    "transformers": _transformers,
    "torchvision": _torchvision,
    "timm": _timm,
    "onnx": _onnx,
}
"""By name, what returns the rows, given the folder for what is downloaded."""


@cache
def rows(library: str, folder: Path | None = None) -> Rows:
    """Return a library's rows; ImportError if it is not installed."""
    return LIBRARIES[library](folder)


def outcome(
    library: str, folder: Path | None, dialect: str | None, stages: Sequence[str], name: str
) -> Outcome:
    """Return what becomes of a model of a library."""
    return measure(name, rows(library, folder)[name], dialect, stages)
