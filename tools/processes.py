"""Commands over many items, which may work in several processes: those that have ``--jobs``."""

from __future__ import annotations

import argparse
import math
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from meta.base.progress import bar
from meta.testing.workers import Lost, answer_all, in_processes


def positive_integer(text: str) -> int:
    """Return an option's value, a number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--jobs``."""
    parser.add_argument(
        "--jobs", type=positive_integer, default=1, metavar="N", help="processes (default: 1)"
    )


def exit_with(main: Callable[[], int]) -> NoReturn:
    """End the process with the exit status of a command, 130 if it is interrupted."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)


@dataclass(frozen=True)
class Limits:
    """What an item may need: seconds, and GiB of memory."""

    seconds: float
    memory: float


def in_order(
    function: Callable[[Any], Any],
    items: Sequence[Any],
    jobs: int,
    what: str,
    limits: Limits | None = None,
) -> Iterator[Any]:
    """Iterate over the results of the items, in their order, with a bar that counts ``what``.

    With one job they are made in this process. Others begin anew, not as a copy of this one.
    ChildProcessError for the item over which one ended. With limits each item has a process of its
    own, and `Lost` in place of its result if that ended or took too long.
    """
    alone = limits is None and min(jobs, len(items)) < 2
    results = map(function, items) if alone else _apart(function, items, jobs, limits)
    with bar(len(items), what, delay=1.0) as progress:
        for result in results:
            progress.update()
            yield result


def _apart(
    function: Callable[[Any], Any], items: Sequence[Any], jobs: int, limits: Limits | None
) -> Iterator[Any]:
    found: dict[int, Any] = {}
    following = 0
    seconds = math.inf if limits is None else limits.seconds
    units = list(enumerate(items))
    for (i, item), answer in in_processes(units, _serve, (function, limits), jobs, seconds):
        if isinstance(answer, Lost) and limits is None:
            raise ChildProcessError(f"{item}: {answer.why}")
        found[i] = answer
        while following in found:
            yield found.pop(following)
            following += 1


def _serve(connection: Connection, function: Callable[[Any], Any], limits: Limits | None) -> None:
    if limits is not None:
        size = int(limits.memory * (1 << 30))
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))
    answer_all(connection, lambda unit: (function(unit[1]), limits is None))
