"""``python -m meta op NAME``: the card of an operator; ``python -m meta ops``: all operators, one
row each, with what is registered about them, and docs/operators.md.

The records come from `meta.cli.card`. To show a further aspect in the list, add a column to
`table`, and to `lacks` if an operator can be without it.
"""

from __future__ import annotations

import argparse
import inspect
import json
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import Any

import meta
from meta.base.errors import ArgumentError
from meta.base.registry import FUNCTIONS, OPERATORS, nearest
from meta.cli.arguments import ASPECTS
from meta.cli.card import MISSING, by_family, card, card_text, gradient_text
from meta.cli.table import columns, show
from meta.dialect import exclude, only, prefer
from meta.dialect.core import dialects
from meta.op.core.op import ComposedOp


def run_op(options: argparse.Namespace) -> int:
    """Print the card."""
    op = OPERATORS[options.name]
    with ExitStack() as choice:
        if options.prefer:
            choice.enter_context(prefer(*options.prefer))
        if options.only:
            choice.enter_context(only(*options.only))
        if options.exclude:
            choice.enter_context(exclude(*options.exclude))
        record = card(op)
    show(options, record, card_text)
    return 0


def run_ops(options: argparse.Namespace) -> int:
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
        record["cast_rule"]["rule"] or MISSING,
        _kernels_cell(record),
        gradient_text(record["gradient"]),
    ]


def _kernels_cell(record: dict[str, Any]) -> str:
    if not record["kernels"]:
        return "none needed" if record["type"]["known_now"] else MISSING
    shown = [
        f"{k['dialect']} {_level(k['plevels'])}" + (f" {k['fusion']}" if k["fusion"] else "")
        for k in record["kernels"]
    ]
    return ", ".join(shown)


def _level(plevels: dict[str, int]) -> str:
    """A level, "10", or, where devices differ, those of each in the dialect's order: "15/5"."""
    distinct = set(plevels.values())
    return "/".join(map(str, plevels.values() if len(distinct) > 1 else distinct))


PACKAGE = Path(meta.__file__).parent
COMMAND = "python -m meta ops --markdown > docs/operators.md"
HEAD = f"""# Operators

Written by `{COMMAND}` from what is registered; do not edit.

Under each signature: how it is called, where a call takes more; what the operator gives; what its
gradient keeps alive, or why there is none; its cast rule for mixed precision (`meta/amp/rules.py`
says what the words mean); the dialects that implement it on every machine, with their level and how
the kernel fuses with its neighbours.
`python -m meta op NAME` shows all that is known of one operator.
"""


def page(records: list[dict[str, Any]]) -> str:
    """Return the page: Markdown, sorted by family and name, the same on every machine.

    Operators and dialects of other packages are left out, and so are dialects that only run on a
    GPU: without one, they are not loaded.
    """
    own = [record for record in records if is_own(record["type"]["site"])]
    own.sort(key=lambda record: (record["family"], record["name"]))
    parts = [HEAD]
    for family, members in groupby(own, key=lambda record: record["family"]):
        entries = [_entry(record) for record in members]
        parts.append(f"## {family} ({len(entries)})\n\n" + "\n".join(entries))
    composed = "\n".join(_function_entry(f) for f in FUNCTIONS if is_own(str(FUNCTIONS.site(f))))
    parts.append(f"## Functions composed of operators ({len(FUNCTIONS)})\n\n{composed}")
    return "\n".join(parts)


def _function_entry(name: str) -> str:
    function = FUNCTIONS[name]
    summary = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
    return f"- `{name}{signature_text(function)}`\\\n  {summary}\n"


def signature_text(function: Any) -> str:
    """Return the parameters of a function with their defaults, without annotations."""
    signature = inspect.signature(function)
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))


def is_own(site: str) -> bool:
    return Path(site.rpartition(":")[0]).is_relative_to(PACKAGE)


def _entry(record: dict[str, Any]) -> str:
    cast = record["cast_rule"]["rule"] or MISSING
    facts = f"Gradient: {gradient_text(record['gradient'])}. Cast: {cast}. {kernels_text(record)}"
    found = OPERATORS[record["name"]]
    more = ""
    if isinstance(found, ComposedOp):
        more = f"  A call: `{found.name}{signature_text(found)}`.\\\n"
    return f"- `{record['schema']}`\\\n{more}  {record['summary']}\\\n  {facts}\n"


def kernels_text(record: dict[str, Any]) -> str:
    kernels = [k for k in record["kernels"] if "cpu" in k["devices"] and is_own(k["site"])]
    if not kernels:
        return "Known from the types: no kernel." if record["type"]["known_now"] else "No kernel."
    kernels.sort(key=lambda k: (-k["plevels"]["cpu"], k["dialect"]))
    return f"Kernels: {', '.join(map(_kernel_text, kernels))}."


def _kernel_text(kernel: dict[str, Any]) -> str:
    notes = [kernel["level"]]
    notes += [kernel["fusion"]] if kernel["fusion"] else []
    return f"{kernel['dialect']} ({', '.join(notes)})"
