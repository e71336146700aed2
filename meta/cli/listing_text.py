"""The rows of ``python -m meta ops`` as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meta.cli import card_text
from meta.cli.table import columns

HEADINGS = ["", "type", "cast rule", "kernels (level, fusion)", "gradient"]


def table(records: list[dict[str, Any]]) -> str:
    """Return the rows under one heading per family, for a terminal."""
    counts: dict[str, int] = {}
    for record in records:
        counts[record["family"]] = counts.get(record["family"], 0) + 1
    heading, *rows = columns([HEADINGS, *(_cells(record) for record in records)])
    lines = [heading]
    for family, count in counts.items():
        lines += ["", f"{family} ({count})", *rows[:count]]
        rows = rows[count:]
    return "\n".join([*lines, "", "python -m meta op NAME shows everything about one of them."])


def missing(found: list[tuple[dict[str, Any], list[str]]]) -> str:
    """Return one row per operator with what it lacks."""
    rows = [[record["name"], f"lacks {', '.join(names)}"] for record, names in found]
    return "\n".join(columns(rows, indent=""))


def _cells(record: dict[str, Any]) -> list[str]:
    place = Path(record["type"]["site"]).name
    return [
        record["name"],
        place + (", a value" if record["type"]["known_now"] else ""),
        record["cast_rule"]["rule"] or card_text.MISSING,
        _kernels(record),
        card_text.gradient(record["gradient"]),
    ]


def _kernels(record: dict[str, Any]) -> str:
    if not record["kernels"]:
        return "none needed" if record["type"]["known_now"] else card_text.MISSING
    shown = [
        f"{k['dialect']} {_level(k['plevels'])}" + (f" {k['fusion']}" if k["fusion"] else "")
        for k in record["kernels"]
    ]
    return ", ".join(shown)


def _level(plevels: dict[str, int]) -> str:
    """A level, "10", or, where devices differ, those of each in the dialect's order: "15/5"."""
    distinct = set(plevels.values())
    return "/".join(map(str, plevels.values() if len(distinct) > 1 else distinct))
