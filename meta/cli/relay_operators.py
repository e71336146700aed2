"""``python -m meta relay operators``: what becomes of every operator that Relay has had.

The table in `docs/relay.md` is written from the same records.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from meta.cli.table import columns
from meta.frontend.relay.registry import operators, relay

COMMAND = "python -m meta relay operators --markdown"


def run(options: argparse.Namespace) -> int:
    """Print the operators; returns 0."""
    found = records()
    if options.json:
        print(json.dumps(found, indent=2))
    elif options.markdown:
        print(markdown(found))
    else:
        rows = [[r["name"], f"{r['since']} - {r['until']}", _outcome(r)] for r in found]
        print("\n".join(columns([["operator", "TVM", "becomes"], *rows])))
    return 0


def records() -> list[dict[str, Any]]:
    """Return one record per operator, by name: since and until which TVM it exists, whether it is
    converted, the base operators that it becomes, or the reason.
    """
    found = []
    for name, facts in sorted(operators().items()):
        converter = relay.get(name)
        found.append(
            {
                "name": name,
                "since": facts.since,
                "until": facts.until,
                "converted": converter is not None and converter.function is not None,
                "becomes": [] if converter is None else [op.name for op in converter.becomes],
                "reason": "there is no converter" if converter is None else converter.reason,
            }
        )
    return found


def markdown(found: list[dict[str, Any]]) -> str:
    """Return the tables of `docs/relay.md`."""
    done = [r for r in found if r["converted"]]
    rest = [r for r in found if not r["converted"]]
    lines = [f"Converted: {len(done)} of {len(found)} operators.", ""]
    lines += ["| operator | TVM | becomes |", "|---|---|---|"]
    lines += [f"| `{r['name']}` | {r['since']} - {r['until']} | {_outcome(r)} |" for r in done]
    lines += [
        "",
        f"Not converted: {len(rest)}.",
        "",
        "| operator | TVM | reason |",
        "|---|---|---|",
    ]
    lines += [f"| `{r['name']}` | {r['since']} - {r['until']} | {_outcome(r)} |" for r in rest]
    return "\n".join(lines)


def _outcome(record: dict[str, Any]) -> str:
    if not record["converted"]:
        return str(record["reason"])
    return ", ".join(record["becomes"]) or "a composition"
