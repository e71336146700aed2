"""The command line: see docs/testing.md."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from tools.fuzz_models.campaign import Summary, cases_of, run_cases, write_failure
from tools.fuzz_models.face import MODULES, Case, Record, face_of


def main(arguments: list[str] | None = None) -> int:
    """Run what the arguments say; return 1 if something failed."""
    options = _parser().parse_args(arguments)
    faces = options.face.split(",")
    only = tuple(options.op.split(",")) if options.op else ()
    try:
        ways = {name: face_of(name).ways(options) for name in faces}
    except (KeyError, ValueError) as unknown:
        print(f"unknown: {unknown}", file=sys.stderr)
        return 2
    if options.replay is not None:
        return _replay(
            [Case(options.replay, w, options.quick, only, f) for f in faces for w in ways[f]]
        )
    cases = [
        case
        for name in faces
        for case in cases_of(options.cases, options.seed, ways[name], options.quick, only, name)
    ]
    cases.sort(key=lambda case: case.seed)  # all faces get their part of the time
    summary, start = Summary(), time.monotonic()
    found = run_cases(cases, options.jobs, options.seconds, smaller=options.minimise)
    for record in found:
        summary.add(record)
        summary.seconds = time.monotonic() - start
        _show(record, summary, len(cases), options)
    _finish(summary, options)
    return 1 if summary.failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz_models", description=__doc__)
    parser.add_argument("--face", default=",".join(MODULES), help="some of the default")
    parser.add_argument("--cases", type=int, default=100, help="how many programs of each face")
    parser.add_argument("--seed", type=int, default=0, help="of the first; the others follow")
    parser.add_argument("--executor", help="of models: some of them, with commas")
    parser.add_argument("--dialect", help="of models: some of them, with commas")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so many")
    parser.add_argument("--minimise", type=float, default=60.0, help="seconds for each failure")
    parser.add_argument("--quick", action="store_true", help="small programs")
    parser.add_argument("--op", help="of models: only these operators")
    parser.add_argument("--json", action="store_true", help="print a summary as JSON at the end")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one case here, and show it")
    parser.add_argument("--out", type=Path, help="a folder for a script per failure")
    return parser


def _replay(cases: list[Case]) -> int:
    failed = 0
    for case in cases:
        face = face_of(case.face)
        print(f"# {case.face}, seed {case.seed}, {case.way}")
        print(face.text(case))
        record = face.run_case(case, 60.0)
        failed |= bool(record.kind)
        print(f"# {record.kind or 'right'}\n{record.script}")
    return failed


def _show(record: Record, summary: Summary, count: int, options: argparse.Namespace) -> None:
    if record.kind:
        case = record.case
        print(f"\n{case.face}, seed {case.seed}, {case.way}: {record.kind}", file=sys.stderr)
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
        seeds = [f"{r.case.face} {r.case.seed}" for r in summary.failures if r.kind == kind]
        print(f"  {kind}: {count}" + (f" ({', '.join(seeds)})" if seeds else ""))


if __name__ == "__main__":
    sys.exit(main())
