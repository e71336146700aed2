"""Work on many items in several processes, for the commands that have ``--jobs``."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from meta.base.progress import bar
from meta.testing.workers import Lost, answer_all, in_processes

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
    function: Callable[[Item], Result], items: Sequence[Item], jobs: int, what: str
) -> Iterator[Result]:
    """Iterate over the results of the items, in their order, with a bar that counts ``what``.

    With one job they are made in this process. Others begin anew, not as a copy of this one.
    ChildProcessError for the item over which one ended.
    """
    results = map(function, items) if min(jobs, len(items)) < 2 else _apart(function, items, jobs)
    with bar(len(items), what, delay=1.0) as progress:
        for result in results:
            progress.update()
            yield result


def _apart(function: Callable[[Item], Any], items: Sequence[Item], jobs: int) -> Iterator[Any]:
    found: dict[int, Any] = {}
    following = 0
    units = list(enumerate(items))
    for (place, item), answer in in_processes(units, _serve, (function,), jobs, math.inf):
        if isinstance(answer, Lost):
            raise ChildProcessError(f"{item}: {answer.why}")
        found[place] = answer
        while following in found:
            yield found.pop(following)
            following += 1


def _serve(connection: Connection, function: Callable[[Any], Any]) -> None:
    answer_all(connection, lambda unit: (function(unit[1]), True))
