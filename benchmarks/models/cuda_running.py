"""`Run`: rows and contenders, and how models_cuda.py and dynamo_cuda.py measure them.

One after the other, or *together*: rows by groups, as many as the device's memory and the cores
hold. All contenders of a group make their models at the same time. Then those whose first call is
asked for compile, one after the other, or some *lanes* of them, each with its share of the cores
for itself, while the rest wait; then the others compile, all at the same time. Then all are timed,
one after the other.
"""

from __future__ import annotations

import os
import queue
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
from report import say
from worker_processes import GroupFailed, WorkerGroup, environment

from models.cuda_strangers import EVERY_ROW
from models.task import Row

CONTEXT_GIGABYTES = 0.7
"""What a process takes of a device before it has an array there, or more."""
Measured = tuple[str, str, dict[str, Any]]
"""A row's name, a contender's, and its record."""


class Process(WorkerGroup):
    """A contender of a row in a process of its own, `cuda_worker`, with its caches in a folder.

    Parameters
    ----------
    flags: options for `cuda_worker`. wait: stop when its model is made, before it compiles, and
    when it has compiled, before it is timed, so that several can be made ready, or compile, at the
    same time. threads: how many Inductor compiles with, where it does not have the machine alone;
    by default a process per core.
    """

    def __init__(
        self,
        row: str,
        contender: str,
        folder: str,
        flags: Sequence[str],
        wait: bool = False,
        threads: int | None = None,
    ) -> None:
        self.row, self.contender = row, contender
        more = {"META_TF32": str(int(EVERY_ROW[row].precision == "tf32"))}
        if threads is not None:
            more["TORCHINDUCTOR_COMPILE_THREADS"] = str(threads)
        command = [sys.executable, "-m", "models.cuda_worker", row, contender, *flags]
        super().__init__([*command, *["--wait"] * wait], [environment(folder, **more)])

    def ready(self) -> None:
        """Wait until it stops the next time, or has failed, as `measure` will say."""
        with suppress(GroupFailed):
            self.answers()

    def go(self, cores: Sequence[int] = ()) -> None:
        """Let it go on to where it stops next, on some cores or all."""
        self.send(" ".join(map(str, cores)))

    def measure(self) -> dict[str, Any]:
        """Let it go on and end, from wherever it is; return its record, which says ``failed`` if it
        did. What it wrote to stderr follows on this process's.
        """
        self.go()
        self.go()  # a line for each of its stops
        try:
            while "ready" in (record := self.answers()[0]):
                pass
            if self.wait():
                record = {"failed": self.end_of(0)}
        except GroupFailed as error:
            record = {"failed": str(error)}
        finally:
            errors = "\n".join(self.errors(0))
            self.end()
        if errors:
            print(f"{self.row} {self.contender}:\n{errors}", file=sys.stderr, flush=True)
        return record


@dataclass(frozen=True)
class Run:
    """What is measured and how.

    Attributes
    ----------
    rows: by name. first_call: the rows and contenders whose first call is asked for; a run that is
    not together measures all. warm: the contenders whose warm first call is measured. flags:
    options of `cuda_worker`. lanes: how many first calls are measured at the same time. processes,
    gigabytes: how many run at the same time, and their memory; by default those of the machine.
    """

    rows: dict[str, Row]
    contenders: list[str]
    first_call: frozenset[tuple[str, str]]
    warm: tuple[str, ...] = ()
    together: bool = False
    flags: tuple[str, ...] = ()
    lanes: int = 1
    processes: int = field(default_factory=lambda: os.cpu_count() or 1)
    gigabytes: float = field(default_factory=lambda: _device_gigabytes())

    def measured(self) -> Iterator[Measured]:
        """Iterate over row, contender and record, as they come; a record that says ``failed`` has
        no figures.
        """
        if not self.together:
            for row, name in product(self.rows, self.contenders):
                yield row, name, self._alone(row, name)
            return
        groups = self.groups()
        for i, group in enumerate(groups):
            say(f"group {i + 1} of {len(groups)}: {', '.join(group)}")
            yield from self._group(group)

    def groups(self) -> list[list[str]]:
        """Return the rows that run together: each in the first group that has room. A row that is
        too large for any has one of its own.
        """
        count = len(self.contenders)
        found: list[list[str]] = []
        room: list[float] = []
        for name, row in self.rows.items():
            need = count * (row.gigabytes + CONTEXT_GIGABYTES)
            for i, group in enumerate(found):
                if room[i] >= need and count * (len(group) + 1) <= self.processes:
                    group.append(name)
                    room[i] -= need
                    break
            else:
                found.append([name])
                room.append(self.gigabytes - need)
        return found

    def _alone(self, row: str, name: str) -> dict[str, Any]:
        """Measure one contender that has the machine for itself."""
        with tempfile.TemporaryDirectory() as folder:
            record = Process(row, name, folder, self.flags).measure()
            if name in self.warm and "failed" not in record:
                record |= _warm(Process(row, name, folder, (*self.flags, "--first-call-only")))
            return record

    def _group(self, names: list[str]) -> Iterator[Measured]:
        pairs = list(product(names, self.contenders))
        crowd = [pair for pair in pairs if pair not in self.first_call]
        share = max(1, self.processes // max(1, len(crowd)))
        cores = sorted(os.sched_getaffinity(0))
        lanes = [cores[i :: self.lanes] for i in range(self.lanes)]
        with tempfile.TemporaryDirectory() as folder, ExitStack() as running:

            def start(pair: tuple[str, str], again: bool = False) -> Process:
                threads = share if pair in crowd else len(lanes[0])
                flags = (*self.flags, "--first-call-only") if again else self.flags
                process = Process(*pair, f"{folder}/{'-'.join(pair)}", flags, True, threads)
                running.callback(process.end)
                return process

            every = {pair: start(pair) for pair in pairs}
            cold = [pair for pair in pairs if pair in self.first_call]
            warm = {pair: start(pair, again=True) for pair in cold if pair[1] in self.warm}
            for process in (*every.values(), *warm.values()):
                process.ready()
            say("models are made")
            free: queue.Queue[list[int]] = queue.Queue()
            for lane in lanes:
                free.put(lane)

            def first_calls(pair: tuple[str, str]) -> dict[str, Any]:
                lane = free.get()
                every[pair].go(lane)
                every[pair].ready()
                more = _warm(warm[pair], lane) if pair in warm else {}
                free.put(lane)
                return more

            with ThreadPoolExecutor(self.lanes) as pool:
                known = dict(zip(cold, pool.map(first_calls, cold), strict=True))
            say("first calls are measured")
            for pair in crowd:
                every[pair].go()
            for pair in crowd:
                every[pair].ready()
            say("all have compiled")
            for pair in pairs:
                record = every[pair].measure()
                if pair not in self.first_call:
                    record.pop("first_call", None)  # others were compiled beside it
                if "failed" not in record:
                    record |= known.get(pair, {})
                yield *pair, record


def _device_gigabytes() -> float:
    return torch.cuda.get_device_properties(0).total_memory / 2**30


def _warm(process: Process, cores: Sequence[int] = ()) -> dict[str, Any]:
    """Return what a second process adds to a contender's record."""
    process.go(cores)
    found = process.measure()
    return found if "failed" in found else {"warm_call": found["first_call"]}
