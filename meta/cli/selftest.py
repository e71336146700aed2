"""``python -m meta selftest``: operators on each dialect in each dtype, by their test cases; the
matrix as text and as the page docs/dialects.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections import defaultdict
from contextlib import suppress
from datetime import date
from typing import Any

import torch

import meta
from meta.base.device import Device, available, require
from meta.base.dtype import canonical
from meta.base.errors import ArgumentError
from meta.base.progress import bar
from meta.base.registry import OPERATORS
from meta.cli.env import OF_CUDA, installed
from meta.cli.table import columns
from meta.dialect.core import dialects
from meta.dialect.core.catalog import known
from meta.testing.matrix import FAIL, PASS, REFUSED, cells
from meta.testing.records import cases_folder
from meta.testing.selftest import SelftestPlan, selftest


def run(options: argparse.Namespace) -> int:
    """Test and print, after Ctrl-C what is known by then; return 1 if something fails."""
    if options.samples < 0 or options.jobs < 0 or options.timeout <= 0:
        raise ArgumentError("--samples and --jobs are not negative, --timeout is positive")
    plan = SelftestPlan(
        cases_folder(options.cases),
        require(options.device or available()[:2][-1]),  # the first GPU, if there is one
        frozenset(known(options.dialect)),
        frozenset(map(canonical, options.dtype)),
        options.samples,
    )
    for name in options.op:
        OPERATORS[name]  # an unknown one is an error
    units = plan.units(options.op)
    if not units:
        raise ArgumentError(
            "there is nothing to test",
            expected=f"operators with cases, and backends that run on {plan.device.kind}",
            hint="python -m meta env says which backends are available, and where",
        )
    found, done = [], 0
    with bar(len(units), "selftest") as progress, suppress(KeyboardInterrupt):
        for unit, outcomes in selftest(plan, units, options.jobs, options.timeout):
            found += outcomes
            done += 1
            progress.set_postfix_str(" on ".join(unit), refresh=False)
            progress.update()
    matrix = cells(found)
    record: dict[str, Any] = {
        **conditions(plan.device),
        "samples": options.samples,
        "unavailable": {d.name: d.unavailable for d in dialects() if d.unavailable is not None},
        "cells": [cell.record() for cell in matrix],
    }
    if options.json:
        print(json.dumps(record, indent=2))
    else:
        print(page(record) if options.markdown else text(record))
    if done < len(units):
        print(f"interrupted after {done} of {len(units)} operators on backends", file=sys.stderr)
        return 130
    return int(any(cell.state == FAIL for cell in matrix))


COMMAND = "python -m meta selftest --device cuda --markdown > docs/dialects.md"
PACKAGES = ("apache-tvm", "triton", *OF_CUDA)
EMPTY_CELL = "·"
SHORT_DTYPES = {
    "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64", "int8": "i8",
    "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8",
    "uint16": "u16", "uint32": "u32",
}  # fmt: skip
ORDER = [*SHORT_DTYPES, "bool"]
LEGEND = (
    "A dtype alone: all samples that the backend takes are right. In parentheses: it refuses all, "
    f"for the reason below. {FAIL}: a result is wrong, or an error is raised. {EMPTY_CELL}: the "
    'backend does not implement the operator. "no kernel": views, and what is known from types.'
)
HEAD = f"""# Operators on each dialect

Written by `{COMMAND}`; do not edit.
`--op`, `--dialect` and `--dtype` choose some of it, `--samples 0` takes every sample of every case,
`--json` has each cell with its reasons. The exit status is 1 if a cell fails.

Each operator's test cases run on each dialect alone, and results are compared with independent
ones in float64. A refusal is no fault: the next dialect runs the call.
"""


def conditions(device: Device) -> dict[str, Any]:
    """Return what the results depend on."""
    packages = {name: installed(name) for name in PACKAGES}
    return {
        "device": str(device),
        "model": torch.cuda.get_device_name(device.ordinal) if device.kind == "cuda" else
        f"{platform.machine()}, {os.cpu_count()} cores",
        "date": date.today().isoformat(),
        "versions": {
            "meta": meta.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            **({"CUDA": torch.version.cuda} if device.kind == "cuda" else {}),
            **{name: found for name, found in packages.items() if found is not None},
        },
    }  # fmt: skip


def text(record: dict[str, Any]) -> str:
    """Return the matrix for a terminal."""
    head, *rows = _rows(record["cells"])
    lines = [
        _conditions_text(record),
        *_unavailable(record),
        "",
        *columns([head, *rows], indent=""),
    ]
    lines += ["", LEGEND, *_refusals(record["cells"], "  "), *_failures(record["cells"], "  ")]
    return "\n".join([*lines, "", _counts(record["cells"])])


def page(record: dict[str, Any]) -> str:
    """Return the page."""
    head, *rows = _rows(record["cells"])
    table = [head, ["---"] * len(head), *([f"`{row[0]}`", *row[1:]] for row in rows)]
    lines = [HEAD, f"- {_conditions_text(record)}", *(f"- {line}" for line in _unavailable(record))]
    lines += [f"- {_counts(record['cells'])}", *_failures(record["cells"], "- ")]
    lines += ["", "## The table", "", LEGEND, ""]
    lines += [f"| {' | '.join(row)} |" for row in table]
    return "\n".join([*lines, *_refusals(record["cells"], "- ")])


def _conditions_text(record: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {found}" for name, found in record["versions"].items())
    taken = f"{record['samples']} sample(s)" if record["samples"] else "all samples"
    return f"{record['model']} ({record['device']}), {record['date']}; {versions}; {taken} a case."


def _unavailable(record: dict[str, Any]) -> list[str]:
    return [f"{name} is unavailable: {why}." for name, why in record["unavailable"].items()]


def _rows(cells: list[dict[str, Any]]) -> list[list[str]]:
    """Return one row per operator, one column per dialect, the head first."""
    names = sorted({cell["dialect"] for cell in cells})
    found: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        found[cell["op"]][cell["dialect"]].append(cell)
    return [
        ["operator", *names],
        *([op, *(_cell(found[op][name]) for name in names)] for op in sorted(found)),
    ]


def _cell(cells: list[dict[str, Any]]) -> str:
    """Return what is known of an operator on a dialect: dtypes that pass, are refused, fail."""
    by_state: dict[str, list[str]] = {PASS: [], REFUSED: [], FAIL: []}
    for cell in sorted(cells, key=lambda cell: _dtype_order(cell["dtype"])):
        by_state[cell["state"]].append(SHORT_DTYPES.get(cell["dtype"], cell["dtype"]))
    passed, refused, failed = map(" ".join, by_state.values())
    shown = [passed, f"({refused})" if refused else "", f"{FAIL} {failed}" if failed else ""]
    return " ".join(filter(None, shown)) or EMPTY_CELL


def _dtype_order(dtype: str) -> int:
    return ORDER.index(dtype) if dtype in ORDER else len(ORDER)


def _refusals(cells: list[dict[str, Any]], mark: str) -> list[str]:
    """Return the reasons of refusals by dialect, each with the operators that have it."""
    found: dict[str, dict[str, dict[str, list[str]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for cell in sorted(cells, key=lambda cell: _dtype_order(cell["dtype"])):
        for reason in cell["refused"]:
            dtype = SHORT_DTYPES.get(cell["dtype"], cell["dtype"])
            found[cell["dialect"]][" ".join(reason.split())][cell["op"]].append(dtype)
    lines = []
    for dialect, reasons in sorted(found.items()):
        lines += ["", f"{dialect} refuses:" if mark.isspace() else f"## {dialect} refuses", ""]
        for reason, ops in sorted(reasons.items()):
            named = ", ".join(f"{op} ({' '.join(dtypes)})" for op, dtypes in sorted(ops.items()))
            lines.append(f"{mark}{reason}: {named}")
    return lines


def _failures(cells: list[dict[str, Any]], mark: str) -> list[str]:
    lines = []
    for cell in cells:
        for reason, count in cell["failed"].items():
            times = f" ({count} times)" if count > 1 else ""
            where = f"{cell['dialect']}.{cell['op']} {cell['dtype']}"
            lines.append(f"{mark}{where}{times}: " + " ".join(reason.split())[:600])
    return ["", FAIL if mark.isspace() else f"## {FAIL}", "", *lines] if lines else []


def _counts(cells: list[dict[str, Any]]) -> str:
    states = [cell["state"] for cell in cells]
    operators = len({cell["op"] for cell in cells})
    named = ", ".join(f"{states.count(s)} {s}" for s in (PASS, REFUSED, FAIL))
    return f"{operators} operators, {len(cells)} cells (operator x dialect x dtype): {named}."
