"""``python -m meta traces``: make one trace of those of several ranks."""

from __future__ import annotations

import argparse
from typing import Any

from meta.cli.table import columns, show
from meta.vm import merge_traces


def run(options: argparse.Namespace) -> int:
    """Merge the files, and print how far the clocks of ranks were apart."""
    shifts = merge_traces(options.traces, options.output)
    ranks = [{"rank": rank, "microseconds": shift} for rank, shift in shifts.items()]
    show(options, {"output": options.output, "ranks": ranks}, _text)
    return 0


def _text(record: dict[str, Any]) -> str:
    rows = [(f"rank {r['rank']}", f"{r['microseconds']:+.1f} us") for r in record["ranks"]]
    return "\n".join([f"{record['output']}: {len(rows)} ranks, clocks moved by", *columns(rows)])
