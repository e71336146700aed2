"""``python -m meta selftest``: operators on each dialect in each dtype, by their test cases."""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import suppress
from typing import Any

import torch

from meta.base.device import require
from meta.base.dtype import canonical
from meta.base.errors import ArgumentError
from meta.base.progress import bar
from meta.base.registry import OPERATORS
from meta.cli import selftest_text
from meta.dialect.core import dialects
from meta.dialect.core.catalog import known
from meta.testing.matrix import FAIL, cells
from meta.testing.records import cases_folder
from meta.testing.selftest import Plan, selftest

TIMEOUT = 300.0


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the arguments."""
    parser = commands.add_parser(
        "selftest",
        help="check every operator on every backend in every dtype on this machine",
        description="Run the operators' test cases on each backend alone, beside independent "
        "results, and print a table: passed, refused (with the reason), or FAIL. The exit status "
        "is 1 if something fails.",
    )
    there = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=there, help=f"cpu, cuda or cuda:N; default {there}")
    for flag, what in (("op", "operator"), ("dialect", "backend"), ("dtype", "dtype")):
        parser.add_argument(
            f"--{flag}",
            action="append",
            default=[],
            metavar="NAME",
            help=f"this {what} only (may be repeated)",
        )
    parser.add_argument(
        "--samples",
        type=int,
        default=1,
        help="how many samples of each case and dtype; 0: all; default 1, which shows most",
    )
    parser.add_argument(
        "-j",
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        help="processes (default: one per core); 0: this one, which a kernel's crash ends",
    )
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT, help="seconds for an operator on a backend"
    )
    parser.add_argument("--cases", metavar="FOLDER", help="the cases; default: those of meta")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object")
    form.add_argument("--markdown", action="store_true", help="print the page docs/dialects.md")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Test and print, after Ctrl-C what is known by then; return 1 if something fails."""
    if options.samples < 0 or options.jobs < 0 or options.timeout <= 0:
        raise ArgumentError("--samples and --jobs are not negative, --timeout is positive")
    plan = Plan(
        cases_folder(options.cases),
        require(options.device),
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
        **selftest_text.conditions(plan.device),
        "samples": options.samples,
        "unavailable": {d.name: d.unavailable for d in dialects() if d.unavailable is not None},
        "cells": [cell.record() for cell in matrix],
    }
    if options.json:
        print(json.dumps(record, indent=2))
    else:
        print(selftest_text.page(record) if options.markdown else selftest_text.text(record))
    if done < len(units):
        print(f"interrupted after {done} of {len(units)} operators on backends", file=sys.stderr)
        return 130
    return int(any(cell.state == FAIL for cell in matrix))
