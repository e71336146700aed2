"""Options of the commands that run torch's own operator samples."""

from __future__ import annotations

import argparse

import torch

from tools.processes import add_jobs, at_least_one
from tools.torch_samples.entries import DTYPES, ENTRIES

NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}


def parser_of(command: str, description: str, failing: str) -> argparse.ArgumentParser:
    """Return a parser of the options that choose samples; failing: what may fail ("sample")."""
    top = argparse.ArgumentParser(
        prog=f"python -m {command}",
        description=description,
        epilog=f"Exit status: 0 no {failing} fails, 1 some do, 2 bad usage.",
    )
    top.add_argument("--exact", nargs="+", metavar="ENTRY", help="these entries only")
    top.add_argument("--dtype", choices=NAMES, action="append", help="instead of all five")
    top.add_argument(
        "--samples", type=at_least_one, metavar="N", help="the first N only, of each dtype"
    )
    add_jobs(top)
    top.add_argument("--json", action="store_true", help="print everything as JSON")
    return top


def entries_of(
    parser: argparse.ArgumentParser, options: argparse.Namespace, part: str
) -> list[str]:
    """Return the entries that are asked for and whose names contain a text; bad usage if torch has
    not what ``--exact`` names.
    """
    if unknown := set(options.exact or ()) - ENTRIES.keys():
        parser.error(f"no such entry: {', '.join(sorted(unknown))}")
    return [name for name in options.exact or ENTRIES if part in name]


def chosen_dtypes(options: argparse.Namespace) -> tuple[torch.dtype, ...]:
    """Return the dtypes that are asked for; none if all are."""
    return tuple(NAMES[name] for name in options.dtype or ())
