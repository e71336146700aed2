"""The command: ``python -m tools.torch_samples``.

An entry *passes* if all of its samples run, in each of float32, float64, bfloat16, int64 and bool
that torch's entry takes, with torch's shapes, dtypes and values, and with torch's gradients in each
of the three floating point dtypes in which torch differentiates it. Samples that ask for what only
torch has (`outside.Outside` is the table) do not count; any other sample that `meta` refuses keeps
its entry from passing. `compare` says when values are alike, and `ambiguous` what is compared of
random numbers.

Exit status: 0 no sample fails, 1 some do, 2 bad usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial

import meta
from tools.processes import in_order
from tools.torch_samples import report
from tools.torch_samples.command import chosen_dtypes, entries_of, parser_of
from tools.torch_samples.outside import ONLY_TORCH
from tools.torch_samples.run import run_on


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = parser_of(
        "tools.torch_samples",
        "Run torch's own operator samples through meta: results and gradients.",
        "sample",
    )
    top.add_argument("--filter", default="", metavar="TEXT", help="entries whose name contains it")
    top.add_argument(
        "--dialect",
        default="torch",
        help='preferred: "torch" (default) compiles nothing, "tvm" compiles a kernel per shape',
    )
    top.add_argument("--declined", action="store_true", help="list why samples did not run")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    arguments = parser()
    options = arguments.parse_args(argv)
    wanted = entries_of(arguments, options, options.filter)
    keys = [k for k in wanted if k not in ONLY_TORCH]
    if not keys:
        arguments.error("there is no entry of these names that is run")
    try:
        with meta.dialect.prefer(options.dialect):
            one = partial(run_on, options.dialect, chosen_dtypes(options), options.samples)
            found = list(in_order(one, keys, options.jobs, "entries"))
    except meta.errors.UnknownName as error:
        arguments.error(str(error))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    total = report.Total(wanted, found)
    if options.json:
        print(json.dumps(total.record(), indent=1))
    else:
        print(report.text(total, declined=options.declined))
    return 1 if total.failing else 0


if __name__ == "__main__":
    sys.exit(main())
