"""``python -m meta ops``: all operators, one row each, with what is registered about them.

The rows come from `meta.cli.card`. To show a further aspect, add a column to `listing_text`, and to
`lacking` if an operator can be without it.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from meta.base.errors import ArgumentError
from meta.base.registry import nearest
from meta.cli import listing_text
from meta.cli.card import by_family, card
from meta.cli.operators_page import page
from meta.dialect.core import dialects

ASPECTS = ("doc", "gradient", "cast_rule", "kernel")
"""What every operator must have; a kernel only if its value is not known from the types alone. The
package's own operators have the cast rule "infer" if none is stated.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the arguments."""
    parser = commands.add_parser(
        "ops",
        help="all operators: gradient, cast rule and backends of each; what is missing",
        description="List operators by family, one row each. `op NAME` shows all of one.",
    )
    parser.add_argument("--family", metavar="FAMILY", help="only those of this family")
    parser.add_argument("--dialect", metavar="BACKEND", help="only those that it implements")
    parser.add_argument(
        "--missing",
        nargs="?",
        const="",
        metavar="ASPECT",
        help="only those that lack an aspect, with status 1 if there are any; "
        f"ASPECT: {', '.join(ASPECTS)} (these by default), or a backend",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON array")
    form.add_argument("--markdown", action="store_true", help="print docs/operators.md")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the rows; the status is 1 if operators were found to lack something."""
    families = by_family()
    if options.family is not None:
        _check("family", options.family, families)
        families = {options.family: families[options.family]}
    records = [card(op) for ops in families.values() for op in ops]
    names = [dialect.name for dialect in dialects()]
    if options.dialect is not None:
        _check("backend", options.dialect, names)
        records = [r for r in records if options.dialect in _implemented(r)]
    if options.missing is not None:
        if options.missing:
            _check("aspect", options.missing, (*ASPECTS, *names))
        asked = (options.missing,) if options.missing else ASPECTS
        found = [(r, [aspect for aspect in asked if lacking(r, aspect)]) for r in records]
        return _report([(r, missing) for r, missing in found if missing], options)
    if options.markdown:
        print(page(records), end="")
    elif options.json:
        print(json.dumps([row(r) for r in records], indent=2))
    else:
        print(listing_text.table(records))
    return 0


def row(record: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a card that a list shows."""
    shown = ("name", "family", "schema", "summary", "type", "gradient", "cast_rule", "kernels")
    return {key: record[key] for key in shown}


def lacking(record: dict[str, Any], aspect: str) -> bool:
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


def _report(found: list[tuple[dict[str, Any], list[str]]], options: argparse.Namespace) -> int:
    """Print who lacks what; nothing, if nobody lacks anything."""
    if options.json:
        print(json.dumps([{**row(r), "missing": missing} for r, missing in found], indent=2))
    elif found:
        print(listing_text.missing(found))
    return 1 if found else 0


def _check(kind: str, name: str, known: Any) -> None:
    """Raise ArgumentError with the nearest names for a name that does not exist."""
    if name not in known:
        hint = nearest(name, known)
        raise ArgumentError(f"there is no {kind} {name!r}", expected=", ".join(known), hint=hint)
