"""The command: ``python -m tools.torch_samples``.

An entry *passes* if all of its samples run, in each of float32, float64, bfloat16, int64 and bool
that torch's entry takes, with torch's shapes, dtypes and values, and with torch's gradients in each
of the three floating point dtypes in which torch differentiates it. Samples that ask for what only
torch has (`decline.Outside` is the table) do not count; any other sample that `meta` refuses, or
that an adapter declines, keeps its entry from passing. `compare` says when values are alike, and
`draws` what is compared of random numbers.

Exit status: 0 no sample fails, 1 some do, 2 bad usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from functools import partial

import meta
from meta.base.progress import bar
from tools.torch_samples import report
from tools.torch_samples.entries import DTYPES, ENTRIES
from tools.torch_samples.families import ADAPTERS
from tools.torch_samples.run import Outcome, run_on

NAMES = {str(dtype)[6:]: dtype for dtype in DTYPES}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(
        prog="python -m tools.torch_samples",
        description="Run torch's own operator samples through meta: results and gradients.",
        epilog="Exit status: 0 no sample fails, 1 some do, 2 bad usage.",
    )
    top.add_argument("--filter", default="", metavar="TEXT", help="entries whose name contains it")
    top.add_argument("--exact", nargs="+", metavar="ENTRY", help="these entries only")
    top.add_argument("--dtype", choices=NAMES, action="append", help="instead of all five")
    top.add_argument("--samples", type=int, metavar="N", help="the first N that run (default: all)")
    top.add_argument(
        "--dialect",
        default="torch",
        help='preferred: "torch" (default) compiles nothing, "tvm" compiles a kernel per shape',
    )
    top.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default: 1)")
    top.add_argument("--declined", action="store_true", help="list why samples did not run")
    top.add_argument("--uncovered", action="store_true", help="list entries without an adapter")
    top.add_argument("--json", action="store_true", help="print everything as JSON")
    return top


def outcomes(options: argparse.Namespace, keys: list[str]) -> Iterator[Outcome]:
    """Yield the outcome of every entry, in order."""
    dtypes = tuple(NAMES[name] for name in options.dtype or ())
    one = partial(run_on, options.dialect, dtypes, options.samples)
    jobs = min(options.jobs, len(keys))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context) if jobs > 1 else nullcontext() as pool:
        found = pool.map(one, keys, chunksize=4) if pool else map(one, keys)
        with bar(len(keys), "entries") as progress:
            for outcome in found:
                progress.update()
                yield outcome


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    arguments = parser()
    options = arguments.parse_args(argv)
    if options.jobs < 1 or (options.samples is not None and options.samples < 1):
        arguments.error("--jobs and --samples are at least 1")
    if unknown := set(options.exact or ()) - ENTRIES.keys():
        arguments.error(f"no such entry: {', '.join(sorted(unknown))}")
    wanted = [k for k in options.exact or ENTRIES if options.filter in k]
    keys = [k for k in wanted if k in ADAPTERS]
    if not keys:
        arguments.error("no entry of these names has an adapter")
    try:
        with meta.dialect.prefer(options.dialect):
            found = list(outcomes(options, keys))
    except meta.errors.UnknownName as error:
        arguments.error(str(error))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    total = report.Total(wanted, found)
    if options.json:
        print(json.dumps(total.record(), indent=1))
    else:
        print(report.text(total, declined=options.declined, uncovered=options.uncovered))
    return 1 if total.failing else 0


if __name__ == "__main__":
    sys.exit(main())
