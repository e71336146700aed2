"""The command line: see docs/testing.md."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from tools.fuzz_models.campaign import (
    Case,
    Record,
    Summary,
    cases_of,
    run_case,
    run_cases,
    style_of,
    write_failure,
)
from tools.fuzz_models.draw import generate
from tools.fuzz_models.program import source
from tools.fuzz_models.run import DIALECTS, EXECUTORS, Way


def main(arguments: list[str] | None = None) -> int:
    """Run what the arguments say; return 1 if something failed."""
    options = _parser().parse_args(arguments)
    executors = options.executor.split(",")
    dialects = options.dialect.split(",")
    ways = [Way(e, d, options.device) for d in dialects for e in executors]
    unknown = [e for e in executors if e not in EXECUTORS] + [
        d for d in dialects if d not in DIALECTS
    ]
    if unknown:
        print(f"unknown: {', '.join(unknown)}", file=sys.stderr)
        return 2
    only = tuple(options.op.split(",")) if options.op else ()
    if options.replay is not None:
        return _replay([Case(options.replay, w, options.quick, only) for w in ways])
    summary, start = Summary(), time.monotonic()
    cases = cases_of(options.cases, options.seed, ways, options.quick, only)
    found = run_cases(cases, options.jobs, options.seconds, smaller=options.minimise)
    for record in found:
        summary.add(record)
        summary.seconds = time.monotonic() - start
        _show(record, summary, len(cases), options)
    _finish(summary, options)
    return 1 if summary.failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz_models", description=__doc__)
    parser.add_argument("--cases", type=int, default=200, help="how many programs")
    parser.add_argument("--seed", type=int, default=0, help="of the first; the others follow")
    parser.add_argument("--executor", default=",".join(EXECUTORS), help="some of the default")
    parser.add_argument("--dialect", default=",".join(DIALECTS), help="some of the default")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so many")
    parser.add_argument("--minimise", type=float, default=60.0, help="seconds for each failure")
    parser.add_argument("--quick", action="store_true", help="small programs")
    parser.add_argument("--op", help="only these operators, with commas")
    parser.add_argument("--json", action="store_true", help="print a summary as JSON at the end")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one case here, and show it")
    parser.add_argument("--out", type=Path, help="a folder for a script per failure")
    return parser


def _replay(cases: list[Case]) -> int:
    failed = 0
    for case in cases:
        print(f"# seed {case.seed}, {case.way}")
        print(source(generate(case.seed, style_of(case))))
        record = run_case(case)
        failed |= bool(record.kind)
        print(f"# {record.kind or 'right'}\n{record.script}")
    return failed


def _show(record: Record, summary: Summary, count: int, options: argparse.Namespace) -> None:
    if record.kind:
        print(f"\nseed {record.case.seed}, {record.case.way}: {record.kind}", file=sys.stderr)
        print(record.script or record.text, file=sys.stderr)
        if options.out is not None:
            write_failure(record, options.out)
    if record.kind or summary.done % 50 == 0:
        rate = summary.done / max(summary.seconds, 1e-9)
        text = f"{summary.done} of {count}, {rate:.2f} a second, {len(summary.failures)} failures"
        print(text, file=sys.stderr, flush=True)


def _finish(summary: Summary, options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps(summary.record(), indent=1))
        return
    print(f"{summary.done} programs of {summary.steps} operators in {summary.seconds:.0f} s")
    for kind, count in summary.kinds.most_common():
        seeds = [r.case.seed for r in summary.failures if r.kind == kind]
        print(f"  {kind}: {count}" + (f" (seeds {', '.join(map(str, seeds))})" if seeds else ""))


if __name__ == "__main__":
    sys.exit(main())
