"""The page `docs/operators.md`, written from operators' cards."""

from __future__ import annotations

import inspect
from itertools import groupby
from pathlib import Path
from typing import Any

import meta
from meta.base.registry import FUNCTIONS, OPERATORS
from meta.cli import card_text
from meta.op.core.op import ComposedOp

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
    own = [record for record in records if _is_own(record["type"]["site"])]
    own.sort(key=lambda record: (record["family"], record["name"]))
    parts = [HEAD]
    for family, members in groupby(own, key=lambda record: record["family"]):
        entries = [_entry(record) for record in members]
        parts.append(f"## {family} ({len(entries)})\n\n" + "\n".join(entries))
    composed = "\n".join(_function_entry(f) for f in FUNCTIONS if _is_own(str(FUNCTIONS.site(f))))
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


def _is_own(site: str) -> bool:
    return Path(site.rpartition(":")[0]).is_relative_to(PACKAGE)


def _entry(record: dict[str, Any]) -> str:
    cast = record["cast_rule"]["rule"] or card_text.MISSING
    facts = f"Gradient: {card_text.gradient(record['gradient'])}. Cast: {cast}. {_kernels(record)}"
    found = OPERATORS[record["name"]]
    more = ""
    if isinstance(found, ComposedOp):
        more = f"  A call: `{found.name}{signature_text(found)}`.\\\n"
    return f"- `{record['schema']}`\\\n{more}  {record['summary']}\\\n  {facts}\n"


def _kernels(record: dict[str, Any]) -> str:
    kernels = [k for k in record["kernels"] if "cpu" in k["devices"] and _is_own(k["site"])]
    if not kernels:
        return "Known from the types: no kernel." if record["type"]["known_now"] else "No kernel."
    kernels.sort(key=lambda k: (-k["plevels"]["cpu"], k["dialect"]))
    return f"Kernels: {', '.join(map(_kernel, kernels))}."


def _kernel(kernel: dict[str, Any]) -> str:
    notes = [kernel["level"]]
    notes += [kernel["fusion"]] if kernel["fusion"] else []
    return f"{kernel['dialect']} ({', '.join(notes)})"
