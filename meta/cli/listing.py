"""``python -m meta ops``: all operators, one row each, with what is registered about them.

The rows come from `meta.cli.card`. To show a further aspect, add a column to `table`, and to
`lacks` if an operator can be without it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from meta.base.errors import ArgumentError
from meta.base.registry import nearest
from meta.cli import card_text
from meta.cli.arguments import ASPECTS
from meta.cli.card import by_family, card
from meta.cli.operators_page import page
from meta.cli.table import columns
from meta.dialect.core import dialects


def run(options: argparse.Namespace) -> int:
    """Print the rows; the status is 1 if operators were found to lack something."""
    names = [dialect.name for dialect in dialects()]  # which may bring operators
    families = by_family()
    if options.family is not None:
        _check("family", options.family, families)
        families = {options.family: families[options.family]}
    records = [card(op) for ops in families.values() for op in ops]
    if options.dialect is not None:
        _check("backend", options.dialect, names)
        records = [r for r in records if options.dialect in _implemented(r)]
    if options.missing is not None:
        if options.missing:
            _check("aspect", options.missing, (*ASPECTS, *names))
        asked = (options.missing,) if options.missing else ASPECTS
        found = [(r, [aspect for aspect in asked if lacks(r, aspect)]) for r in records]
        found = [(r, aspects) for r, aspects in found if aspects]
        if options.json:
            print(json.dumps([{**row(r), "missing": aspects} for r, aspects in found], indent=2))
        elif found:
            print(missing(found))
        return 1 if found else 0
    if options.markdown:
        print(page(records), end="")
    elif options.json:
        print(json.dumps([row(r) for r in records], indent=2))
    else:
        print(table(records))
    return 0


def row(record: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a card that a list shows."""
    shown = ("name", "family", "schema", "summary", "type", "gradient", "cast_rule", "kernels")
    return {key: record[key] for key in shown}


def lacks(record: dict[str, Any], aspect: str) -> bool:
    """Whether an operator is without an aspect (or without a kernel of a dialect) and needs it."""
    if aspect in ("doc", "gradient"):
        return not record[aspect]
    if aspect == "cast_rule":
        return record["cast_rule"]["rule"] is None
    if record["type"]["known_now"]:
        return False
    return not record["kernels"] if aspect == "kernel" else aspect not in _implemented(record)


def _implemented(record: dict[str, Any]) -> list[str]:
    return [kernel["dialect"] for kernel in record["kernels"]]


def _check(kind: str, name: str, known: Any) -> None:
    """Raise ArgumentError with the nearest names for a name that does not exist."""
    if name not in known:
        hint = nearest(name, known)
        raise ArgumentError(f"there is no {kind} {name!r}", expected=", ".join(known), hint=hint)


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
