"""Records of contenders on a GPU: how they are compared, kept in a file, and shown.

A record is what `cuda_worker` prints, or says why there is none (``failed``). Those of a row are in
a dict by contender.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from models.cuda_running import Run
from models.cuda_strangers import EVERY_ROW

TOLERANCES = {"float16": 2e-2, "bfloat16": 3e-2, "tf32": 5e-3}
"""How far results may be apart, as a share of the largest of them."""
BFLOAT16_RESULTS = 8e-2
"""The same of inference in bfloat16, where results are no means: those of torch eager on the CPU
are up to 0.037 from those in float32 (30 layers), and another compiler's as far on another side.
"""
COMPILED = ("compile", "reduce-overhead")
"""The contenders that Inductor compiles."""
Record = dict[str, Any]
RowRecords = dict[str, Record]


def collect(run: Run, conditions: str, file: Path | None) -> dict[str, RowRecords]:
    """Return the records of a run by row and contender. Each is shown as it comes. Rows are added
    to the file, if there is one, as soon as they are whole.
    """
    found: dict[str, RowRecords] = {name: {} for name in run.rows}
    for name, contender, record in run.measured():
        found[name][contender] = record
        print(summary(name, contender, record), file=sys.stderr, flush=True)
        if len(found[name]) == len(run.contenders):
            compare(name, found[name])
            if file is not None:
                with file.open("a") as lines:
                    line = {"conditions": conditions, "row": name, "contenders": found[name]}
                    print(json.dumps(line), file=lines)
    return found


def read_rows(file: Path) -> tuple[str | None, dict[str, RowRecords]]:
    """Return the conditions of a file's rows and their records; None and nothing without a file.
    ValueError if conditions differ.
    """
    if not file.exists():
        return None, {}
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    conditions = {line["conditions"] for line in lines}
    if len(conditions) > 1:
        raise ValueError(f"{file} has rows of {' and of '.join(sorted(conditions))}")
    return next(iter(conditions), None), {line["row"]: line["contenders"] for line in lines}


def compare(row: str, found: RowRecords) -> None:
    """Mark contenders as failed whose results are not those of torch eager."""
    if "values" not in found.get("eager", {}):
        return
    expected = torch.tensor(found["eager"]["values"])
    bound = tolerance(row) * expected.abs().max()
    for name, record in found.items():
        if "values" in record:
            difference = (torch.tensor(record["values"]) - expected).abs().max()
            if not difference <= bound:
                record["failed"] = f"results differ by {difference:.2e}: {record['values']}"
                print(summary(row, name, record), file=sys.stderr)


def tolerance(row: str) -> float:
    """Return how far a row's results may be apart, as a share of the largest."""
    how = EVERY_ROW[row]
    if how.precision == "bfloat16" and not how.training:
        return BFLOAT16_RESULTS
    return TOLERANCES[how.precision]


def shares(own: str, found: RowRecords) -> dict[str, float | None]:
    """Return the figures of a contender as shares of the best of the others: that with the least
    time, of time and memory; and the least cold first call of Inductor's that was measured.
    """
    right = {n: r for n, r in found.items() if "failed" not in r}
    others = {n: r for n, r in right.items() if n != own}
    if own not in right or not others:
        return {"time": None, "memory": None, "first_call": None}
    ours, best = right[own], min(others.values(), key=lambda r: r["ms"])
    first = [others[n]["first_call"] for n in COMPILED if "first_call" in others.get(n, {})]
    return {
        "time": ours["ms"] / best["ms"],
        "memory": ours["peak_mb"] / best["peak_mb"],
        "first_call": ours["first_call"] / min(first) if first else None,
    }


def failed(records: list[dict[str, Any]]) -> bool:
    """Tell whether a contender of a row has failed."""
    return any("failed" in found for r in records for found in r["contenders"].values())


def figure(record: Record | None, key: str, digits: int) -> str:
    """Return a figure of a record as text, "" of no record."""
    if record is None:
        return ""
    return "failed" if "failed" in record else f"{record[key]:.{digits}f}"


def first(record: Record | None) -> str:
    """Return the cold and the warm first call as text."""
    found = record or {}
    return " / ".join(f"{found[key]:.1f}" for key in ("first_call", "warm_call") if key in found)


def share(value: float | None) -> str:
    """Return a ratio as text."""
    return "" if value is None else f"{value:.2f}x"


def what(row: str, tiny: bool) -> str:
    """Return a row's work in words."""
    return f"{EVERY_ROW[row].task(tiny).what} {'train' if EVERY_ROW[row].training else 'infer'}"


def summary(row: str, name: str, record: Record) -> str:
    """Return one line of what is known of a contender before the table is."""
    head = f"{row:22s} {name:16s}"
    if "failed" in record:
        return f"{head} failed: {record['failed']}"
    return (
        f"{head} {record['ms']:9.3f} ms ({record['host_ms']:.3f} on the host), "
        f"{record['peak_mb']:6.0f} MB, first call {first(record) or 'not measured'}"
    )
