"""`RankGroup`: the processes of one contender of distributed.py, one for each rank, `rank_worker`.

All are told the same line at the same time and have a limit to answer. One that ends, or does not
answer in time, ends its group: the others of it wait in a collective, some of them for ever.
"""

from __future__ import annotations

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
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

BENCHMARKS = Path(__file__).parents[1]
TAIL = 25
"""Lines of a failed rank's stderr that are shown."""


class GroupFailed(Exception):
    """A rank has ended, or did not answer in time."""


class RankGroup:
    """A contender with its ranks, each a process on a device of its own.

    Parameters
    ----------
    command: the process. ranks: how many. folder: for caches. limit: seconds for the first answer,
    from the start on, and for each further one. environment: more variables.
    """

    def __init__(
        self,
        command: Sequence[str],
        ranks: int,
        folder: str,
        limit: float,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.ranks, self.limit = ranks, limit
        self._until = time.monotonic() + limit
        paths = [str(BENCHMARKS), *filter(None, [os.environ.get("PYTHONPATH")])]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        common = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "META_CACHE_DIR": f"{folder}/meta",
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
            "TRITON_CACHE_DIR": f"{folder}/triton",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
            **(environment or {}),
        }
        self._errors = [tempfile.TemporaryFile("w+") for _ in range(ranks)]  # noqa: SIM115
        self._processes = [
            subprocess.Popen(
                list(command),
                env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors[rank],
                text=True,
                start_new_session=True,  # so that its own processes end with it
            )
            for rank in range(ranks)
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
                raise GroupFailed(f"rank {rank}: {self._end_of(rank)}")
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
        self._until = time.monotonic() + self.limit
        for process in self._processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it has ended: `answers` will say so
                process.stdin.write(f"{line}\n")
                process.stdin.flush()
        return self.answers()

    def _end_of(self, rank: int) -> str:
        process = self._processes[rank]
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        lines = self.errors(rank)
        return f"exit status {process.returncode}: {lines[-1] if lines else 'it said nothing'}"

    def errors(self, rank: int) -> list[str]:
        """Return the last lines of a rank's stderr."""
        file = self._errors[rank]
        file.seek(0)
        return file.read().strip().splitlines()[-TAIL:]

    def show_errors(self, name: str) -> None:
        """Print the last lines of each rank's stderr."""
        for rank in range(self.ranks):
            for line in self.errors(rank):
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
