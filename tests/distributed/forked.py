"""Ranks as forks of one process that has imported everything: a start takes 20 ms, not 3 s.

Each rank is what torchrun would start. The first rank keeps the store, or, with ``agent``, another
process does, as torchrun's agent.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import distributed as dist


@dataclass
class Ranks:
    """Ranks under way: their processes, by rank, and the files with what they said."""

    pids: list[int]
    folder: Path
    agent: int
    began: float

    def wait(self, limit: float = 60.0) -> list[dict[str, Any]]:
        """Wait for all ranks; return of each its exit code (of a killed one, minus the signal), the
        seconds that it took, and what it said. Those that take longer are killed: code None.
        """
        found: dict[int, dict[str, Any]] = {}
        while len(found) < len(self.pids):
            late = time.monotonic() > self.began + limit
            for rank, pid in enumerate(self.pids):
                if rank in found:
                    continue
                if late:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                ended, status = os.waitpid(pid, 0 if late else os.WNOHANG)
                if ended:
                    code = None if late else os.waitstatus_to_exitcode(status)
                    seconds = time.monotonic() - self.began
                    said = (self.folder / f"{rank}.txt").read_text(errors="replace")
                    found[rank] = {"code": code, "seconds": seconds, "said": said}
            time.sleep(0.005)
        if self.agent:
            os.kill(self.agent, signal.SIGKILL)
            os.waitpid(self.agent, 0)
        return [found[rank] for rank in range(len(self.pids))]


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start(
    count: int,
    main: Callable[[int], None],
    folder: Path,
    agent: bool = False,
    whole_exit: bool = False,
) -> Ranks:
    """Start ranks, each of which calls ``main`` with its number and ends as any program does; but
    for the end of the interpreter, which takes a second of a process with all these modules, unless
    ``whole_exit``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    pids: list[int] = []
    keeper = _agent(port) if agent else 0
    began = time.monotonic()
    sys.stdout.flush()
    for rank in range(count):
        child = os.fork()
        if child:
            pids.append(child)
            continue
        said = os.open(folder / f"{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1)
        os.dup2(said, 2)
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(count),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            TORCHELASTIC_USE_AGENT_STORE=str(agent),
        )
        if whole_exit:
            main(rank)
            sys.exit(0)
        code = 0
        try:
            main(rank)
        except BaseException as error:
            code = 1
            sys.excepthook(type(error), error, error.__traceback__)
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return Ranks(pids, folder, keeper, began)


def _agent(port: int) -> int:
    """Start a process that keeps the store; return its number."""
    child = os.fork()
    if child:
        return child
    store = dist.TCPStore("127.0.0.1", port, None, True, timedelta(seconds=30), False)
    while store:
        time.sleep(60)
    return 0
