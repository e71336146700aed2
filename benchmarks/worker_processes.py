"""Processes of their own for what is measured, with empty caches on disk.

`records_of` runs one to its end. `WorkerGroup` are some that are told lines: all the same one at
the same time, with a limit to answer. One that ends, or does not answer in time, ends its group:
the others may wait in a collective, some of them for ever.
"""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

BENCHMARKS = Path(__file__).parent
TAIL = 25
"""Lines of a failed worker's stderr that are shown."""
DAY = 86400.0


def environment(folder: str, **more: str) -> dict[str, str]:
    """Return the environment of a process that finds what is in benchmarks/ and has its caches in a
    folder.
    """
    paths = [str(BENCHMARKS), *filter(None, [os.environ.get("PYTHONPATH")])]
    caches = {
        "META_CACHE_DIR": f"{folder}/meta",
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "TRITON_CACHE_DIR": f"{folder}/triton",
    }
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **caches, **more}


def compile_bytecode() -> None:
    """Compile what is imported in a first call to bytecode, as installing does unless told not to:
    else the first processes do, in the time that is measured.
    """
    found = map(importlib.util.find_spec, ("meta", "tvm", "tvm_ffi"))
    folders = [f for spec in found for f in (spec and spec.submodule_search_locations) or ()]
    # In a process of its own: forks of one that has a CUDA context take a minute.
    subprocess.run([sys.executable, "-m", "compileall", "-qq", "-j", "0", *folders], check=False)


def rank_environments(ranks: int, folder: str, **more: str) -> list[dict[str, str]]:
    """Return those of the ranks of a machine, as torchrun makes them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = environment(
        folder,
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        WORLD_SIZE=str(ranks),
        LOCAL_WORLD_SIZE=str(ranks),
        OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", "1"),
    )
    return [{**common, "RANK": str(i), "LOCAL_RANK": str(i), **more} for i in range(ranks)]


def records_of(folder: str, *arguments: str, **more: str) -> Iterator[Any]:
    """Run Python; iterate over the objects of JSON that it prints, each on a line, as they come.
    SystemExit if it fails.
    """
    command = [sys.executable, "-W", "ignore", *arguments]
    with subprocess.Popen(
        command, env=environment(folder, **more), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                yield json.loads(line)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} ended with {process.returncode}")


def answers_alone() -> TextIO:
    """Return where a worker's answers go; whatever libraries print to stdout goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


class GroupFailed(Exception):
    """A worker has ended, or did not answer in time."""


class WorkerGroup:
    """Processes that answer lines on stdin by lines of JSON on stdout.

    Parameters
    ----------
    command: of each. environments: one for each. limit: seconds for the first answer, from the
    start on, and for each further one.
    """

    def __init__(
        self,
        command: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        limit: float = DAY,
    ) -> None:
        self.ranks, self.limit = len(environments), limit
        self._until = time.monotonic() + limit
        self._errors = [tempfile.TemporaryFile("w+") for _ in environments]  # noqa: SIM115
        self._processes = [
            subprocess.Popen(
                list(command),
                env=own,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,  # so that its own processes end with it
            )
            for own, errors in zip(environments, self._errors, strict=True)
        ]
        self._ended: set[int] = set()
        self._answers: queue.Queue[tuple[int, str | None]] = queue.Queue()
        for rank, process in enumerate(self._processes):
            assert process.stdout is not None
            threading.Thread(target=self._read, args=(rank, process.stdout), daemon=True).start()

    def _read(self, rank: int, stdout: TextIO) -> None:
        with suppress(ValueError):  # it was closed
            for line in stdout:
                self._answers.put((rank, line))
        self._answers.put((rank, None))

    def answers(self) -> list[dict[str, Any]]:
        """Return what each rank says next, by rank. Raises GroupFailed."""
        found: dict[int, dict[str, Any]] = {}
        while missing := [rank for rank in range(self.ranks) if rank not in found]:
            for rank in self._ended.intersection(missing):
                raise GroupFailed(self.end_of(rank))
            try:
                rank, line = self._answers.get(timeout=max(self._until - time.monotonic(), 0.01))
            except queue.Empty:
                who = ", ".join(map(str, missing))
                raise GroupFailed(f"no answer of rank {who} within {self.limit:g} s") from None
            if line is None:  # it may have answered before, for the last time
                self._ended.add(rank)
            else:
                found[rank] = json.loads(line)
        return [found[rank] for rank in range(self.ranks)]

    def tell(self, line: str) -> list[dict[str, Any]]:
        """Tell all ranks a line, and return what they answer, by rank. Raises GroupFailed."""
        self.send(line)
        return self.answers()

    def send(self, line: str) -> None:
        """Tell all ranks a line."""
        self._until = time.monotonic() + self.limit
        for process in self._processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it has ended: `answers` will say so
                process.stdin.write(f"{line}\n")
                process.stdin.flush()

    def wait(self) -> int:
        """Wait until all have ended; return the largest exit status, of a killed one its signal."""
        return max(abs(process.wait()) for process in self._processes)

    def end_of(self, rank: int) -> str:
        """Return how a rank has ended."""
        process = self._processes[rank]
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        lines = self.errors(rank)
        who = f"rank {rank}: " * (self.ranks > 1)
        return f"{who}exit status {process.returncode}: {lines[-1] if lines else 'it said nothing'}"

    def errors(self, rank: int) -> list[str]:
        """Return the lines of a rank's stderr."""
        file = self._errors[rank]
        file.seek(0)
        return file.read().strip().splitlines()

    def show_errors(self, name: str) -> None:
        """Print the last lines of each rank's stderr."""
        for rank in range(self.ranks):
            for line in self.errors(rank)[-TAIL:]:
                print(f"{name} rank {rank}: {line}", file=sys.stderr, flush=True)

    def end(self, patience: float = 0.0) -> None:
        """End all ranks, and what they have started; patience: seconds to do it by themselves."""
        until = time.monotonic() + patience
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(until - time.monotonic(), 0.0))
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for file in (process.stdin, process.stdout):
                assert file is not None
                with suppress(BrokenPipeError):  # a line may be left that it did not take
                    file.close()
        for errors in self._errors:
            errors.close()
