"""The command: ``python -m tools.client_models``.

Each model is imported, run operator by operator, compiled, and differentiated in train mode by the
tape and by a compiled step; the module itself runs and trains under
``torch.compile(backend="meta", fullgraph=True)``. Results and gradients are compared with torch's;
`measure.py` says when they are equal. Libraries that are not installed are skipped, and said so.

Exit status: 0 all models pass, or miss for a cause in torch that is named; 1 some do not; 2 bad
usage; 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

from tools.client_models.libraries import LIBRARIES, outcome, rows
from tools.client_models.measure import Outcome
from tools.client_models.stages import STAGES
from tools.processes import add_jobs, in_order

TITLES = ("eager", "compiled", "grads", "c. grads", "t.comp.", "t.c.grads")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(
        prog="python -m tools.client_models",
        description="Import, run, compile and differentiate models of transformers, torchvision "
        "and timm, and compare with torch.",
        epilog="Exit status: 0 all pass, 1 some do not, 2 bad usage.",
    )
    top.add_argument("--filter", default="", metavar="TEXT", help="models whose name contains it")
    top.add_argument("--library", choices=LIBRARIES, action="append", help="instead of all")
    top.add_argument("--stage", choices=STAGES, action="append", help="instead of all six")
    top.add_argument(
        "--dialect", help="preferred in compiled programs; by default each call has its best"
    )
    add_jobs(top)
    top.add_argument("--json", action="store_true", help="print everything as JSON")
    return top


def line(outcome: Outcome) -> str:
    """Return a model's line of the table."""
    cells = [f"{outcome.errors[s]:8.1e}" if s in outcome.errors else " " * 8 for s in STAGES]
    seconds = f"{sum(outcome.seconds.values()):6.1f}s"
    said = [f"{s} {why}" for s, why in outcome.rounding.items()]
    said += [f"refused by torch at {outcome.refused}"] if outcome.refused else []
    said += [f"{s} FAILS: {' '.join(why.split())[:300]}" for s, why in outcome.failed.items()]
    return "  ".join([f"{outcome.name:20}", *cells, seconds, *said])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = parser().parse_args(arguments)
    keys: list[tuple[str, str]] = []
    skipped = {}
    for library in options.library or LIBRARIES:
        try:
            keys += [(library, name) for name in rows(library) if options.filter in name]
        except ImportError as error:
            skipped[library] = str(error)
    if not options.json:
        print("  ".join([f"{'model':20}", *(f"{title:8}" for title in TITLES)]))
    found = []
    measured = partial(outcome, options.dialect, options.stage or list(STAGES))
    for one in in_order(measured, keys, options.jobs, "models"):
        found.append(one)
        if not options.json:
            print(line(one), flush=True)
    failed = [o.name for o in found if not o.passes]
    if options.json:
        print(json.dumps({"models": [asdict(o) for o in found], "skipped": skipped}, indent=2))
    else:
        for library, why in skipped.items():
            print(f"{library} is skipped: {why}")
        refused = sum(o.refused is not None and o.passes for o in found)
        passed = len(found) - len(failed) - refused
        print(f"{passed} of {len(found)} pass, {refused} refused by torch", end="")
        print(f", {len(failed)} fail: {', '.join(failed)}" if failed else "")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
