"""Text tables and other plain text that the commands share."""

from __future__ import annotations

import os
from collections.abc import Sequence


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


def short_site(site: str) -> str:
    """Return a file:line relative to the working directory if it lies in it."""
    return os.path.relpath(site) if site.startswith(os.getcwd() + os.sep) else site
