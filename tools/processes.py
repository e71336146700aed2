"""Work on many items in several processes, for the commands that have ``--jobs``."""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from typing import TypeVar

from meta.base.progress import bar

Item = TypeVar("Item")
Result = TypeVar("Result")


def at_least_one(text: str) -> int:
    """Return an option's value, a number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--jobs``."""
    parser.add_argument(
        "--jobs", type=at_least_one, default=1, metavar="N", help="processes (default: 1)"
    )


def in_order(
    function: Callable[[Item], Result], items: Sequence[Item], jobs: int, what: str, chunk: int = 1
) -> Iterator[Result]:
    """Iterate over the results of the items, in their order, with a bar that counts ``what``.

    With one job they are made in this process. Others begin anew, not as a copy of this one, and
    take ``chunk`` items at a time.
    """
    jobs = min(jobs, len(items))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context) if jobs > 1 else nullcontext() as pool:
        results = pool.map(function, items, chunksize=chunk) if pool else map(function, items)
        with bar(len(items), what, delay=1.0) as progress:
            for result in results:
                progress.update()
                yield result
