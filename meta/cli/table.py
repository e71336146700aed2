"""What the commands share: options, text tables and other plain text."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any


def show(
    options: argparse.Namespace, record: dict[str, Any], text: Callable[[dict[str, Any]], str]
) -> None:
    """Print a record, as JSON or as text."""
    print(json.dumps(record, indent=2) if options.json else text(record))


def columns(rows: Sequence[Sequence[object]], *, indent: str = "  ") -> list[str]:
    """Return rows as lines of left-aligned columns, two spaces apart."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        indent + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def section(title: str, rows: Sequence[Sequence[object]]) -> list[str]:
    """Return a heading and its rows; nothing if there are no rows."""
    return ["", title, *columns(rows)] if rows else []
