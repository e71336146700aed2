"""The command: ``python -m tools.torch_samples [functions | overloads | enable]``.

The comparison *functions*, the default, computes what each entry asks for. An entry *passes* if all
of its samples run, in each of float32, float64, bfloat16, int64 and bool that torch's entry takes,
with torch's shapes, dtypes and values, and with torch's gradients in each of the three floating
point dtypes in which torch differentiates it. Samples that ask for what only torch has
(`outside.Outside` is the table) do not count; any other sample that `meta` refuses keeps its entry
from passing. `compare` says when values are alike, and `ambiguous` what is compared of random
numbers.

*overloads* compares the converter of every overload of ATen that torch calls on the way, and
*enable* torch with itself inside of `meta.interop.torch.enable`; their files say how.

Exit status: 0 nothing fails, 1 something does, 2 bad usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import meta
from tools.processes import add_jobs, exit_with, in_order, positive_integer
from tools.torch_samples import enable, functions, overloads, report
from tools.torch_samples.entries import DTYPES, ENTRIES
from tools.torch_samples.outside import ONLY_TORCH
from tools.torch_samples.run import Outcome

NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(
        prog="python -m tools.torch_samples",
        description="Run torch's own operator samples, results and gradients, through meta.",
        epilog="Exit status: 0 nothing fails, 1 something does, 2 bad usage.",
    )
    top.add_argument(
        "comparison",
        nargs="?",
        choices=COMPARISONS,
        default="functions",
        help="of each entry (default), of the overloads that torch calls, or of what is enabled",
    )
    top.add_argument("--exact", nargs="+", metavar="ENTRY", help="these entries only")
    top.add_argument("--filter", default="", metavar="TEXT", help="entries whose name contains it")
    top.add_argument("--overload", default="", metavar="TEXT", help="overloads, likewise")
    top.add_argument("--dtype", choices=NAMES, action="append", help="instead of all five")
    top.add_argument(
        "--samples", type=positive_integer, metavar="N", help="the first N only, of each dtype"
    )
    top.add_argument(
        "--dialect",
        help='preferred: "torch" (default) compiles nothing, "tvm" compiles a kernel per shape; of '
        'what is enabled, "mirror" (default) is torch under another name',
    )
    add_jobs(top)
    top.add_argument("--declined", action="store_true", help="list why samples did not run")
    top.add_argument("--json", action="store_true", help="print everything as JSON")
    top.add_argument(
        "--page", type=Path, metavar="FILE", help="write what is not enabled as a page"
    )
    return top


def _functions(options: argparse.Namespace, key: str) -> list[Outcome]:
    return [functions.run(key, options.dtypes, options.samples)]


def _overloads(options: argparse.Namespace, key: str) -> list[Outcome]:
    return [*overloads.run(key, options.overload, options.dtypes, options.samples).values()]


def _enable(options: argparse.Namespace, key: str) -> list[Outcome]:
    return [enable.run(key, options.dtypes, options.samples, options.dialect)]


COMPARISONS: dict[str, Callable[[argparse.Namespace, str], list[Outcome]]] = {
    "functions": _functions,
    "overloads": _overloads,
    "enable": _enable,
}


def run_entry(options: argparse.Namespace, key: str) -> list[Outcome]:
    """Run an entry, in a process that may be another one."""
    with nullcontext() if options.dialect == "mirror" else meta.dialect.prefer(options.dialect):
        return COMPARISONS[options.comparison](options, key)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    arguments = parser()
    options = arguments.parse_args(argv)
    options.dtypes = tuple(NAMES[name] for name in options.dtype or ())
    if unknown := set(options.exact or ()) - ENTRIES.keys():
        arguments.error(f"no such entry: {', '.join(sorted(unknown))}")
    wanted = [name for name in options.exact or ENTRIES if options.filter in name]
    outside = ONLY_TORCH if options.comparison == "functions" else {}
    keys = [key for key in wanted if key not in outside]
    if not keys:
        arguments.error("there is no entry of these names that is run")
    enabling = options.comparison == "enable"
    if options.page and not enabling:
        arguments.error("--page is of what is enabled")
    options.dialect = options.dialect or ("mirror" if enabling else "torch")
    if options.dialect != "mirror" or not enabling:
        try:
            meta.dialect.prefer(options.dialect)
        except meta.errors.UnknownName as error:
            arguments.error(str(error))
    found = in_order(partial(run_entry, options), keys, options.jobs, "entries")
    outcomes = [outcome for of_entry in found for outcome in of_entry]
    total = report.Total(wanted, {k: outside[k] for k in wanted if k in outside}, outcomes)
    if options.page:
        given = sys.argv[1:] if argv is None else argv
        options.page.write_text(enable.page(total.sum, given, len(keys)), "utf-8")
    if options.json:
        print(json.dumps(total.record(), indent=1))
    else:
        print(report.text(total, declined=options.declined))
    return 1 if total.failing else 0


if __name__ == "__main__":
    exit_with(main)
