"""Units of work in processes that may die: each unit is answered, or it is said how it was lost."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

POLL_SECONDS, START_SECONDS = 1.0, 300.0
"""How often processes are looked at, and in what time one is ready for its first unit."""


@dataclass(frozen=True)
class Lost:
    """A unit without an answer, and why."""

    why: str


class _Worker:
    """A process that is given one unit at a time."""

    def __init__(self, serve: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        context = get_context("spawn")  # a process that uses a GPU cannot be forked
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, *arguments), daemon=True)
        self.process.start()
        theirs.close()
        self.is_ready = False

    def give(self, unit: Any) -> None:
        """Start on a unit."""
        self.unit = unit
        self.start_clock(self.is_ready)
        self.connection.send(unit)

    def start_clock(self, is_ready: bool = True) -> None:
        """Count the seconds from now on: of the unit, or until it is ready for it."""
        self.is_ready, self._since = is_ready, time.monotonic()

    def why_late(self, timeout: float) -> str | None:
        """Return that its time is over; None if it has some left."""
        limit = timeout if self.is_ready else max(timeout, START_SECONDS)
        late = time.monotonic() - self._since > limit
        return f"no answer within {limit:g} s" if late else None

    def end(self) -> int | None:
        """End the process; return its exit status."""
        self.connection.close()
        self.process.join(POLL_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        return self.process.exitcode


def in_processes(
    units: Sequence[Any],
    serve: Callable[..., None],
    arguments: tuple[Any, ...],
    jobs: int,
    timeout: float,
) -> Iterator[tuple[Any, Any]]:
    """Iterate over (unit, answer) as they come; the answer is `Lost` where the process died over
    the unit, or took longer than ``timeout`` seconds; those that a process takes to start do not
    count.

    serve: a function of a module, called in each process with a connection and the ``arguments``.
    It calls `answer_all`, or ends when it has had enough: the others' units go to a new process.
    """
    waiting, workers = deque(units), list[_Worker]()
    try:
        while waiting or workers:
            while waiting and len(workers) < jobs:
                worker = _Worker(serve, arguments)
                workers.append(worker)
                worker.give(waiting.popleft())
            heard = wait([w.connection for w in workers], POLL_SECONDS)
            for worker in list(workers):
                late = worker.why_late(timeout)
                if worker.connection not in heard and not late:
                    continue
                if late:
                    worker.process.kill()
                    answer, goes_on = Lost(late), False
                else:
                    found = _message(worker)
                    if found is None:
                        worker.start_clock()
                        continue
                    answer, goes_on = found
                yield worker.unit, answer
                if goes_on and waiting:
                    worker.give(waiting.popleft())
                else:
                    worker.end()
                    workers.remove(worker)
    finally:
        for worker in workers:
            worker.process.kill()
            worker.end()


def _message(worker: _Worker) -> tuple[Any, bool] | None:
    """Return what a worker answers, and whether it goes on; None if it is ready for its unit."""
    try:
        found: tuple[Any, bool] | None = worker.connection.recv()
    except (EOFError, ConnectionResetError):
        return Lost(f"the process ended with status {worker.end()}"), False
    return found


def answer_all(connection: Connection, answer: Callable[[Any], tuple[Any, bool]]) -> None:
    """Answer units until there are no more, or until ``answer`` says (second) that it is over.

    Ctrl-C is for the process that asks: it ends the others.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection.send(None)  # it is ready
    goes_on = True
    while goes_on:
        try:
            unit = connection.recv()
        except EOFError:
            return
        result, goes_on = answer(unit)
        connection.send((result, goes_on))
