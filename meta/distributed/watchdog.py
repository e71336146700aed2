"""`Watchdog`: what a process tells the others of itself, and what it finds out of them.

Each rank keeps a row in the store, which a thread of it writes a few times a second: how many
collectives it has begun along each axis, which one it is in, its line in the user's code. So nobody
pays for it in a collective, and when one fails, whoever waited can say which ranks are missing, and
where these are. The first rank that finds a failure writes down what it is; the others repeat that.

Gloo raises an error at its limit of time, or when a peer is gone. A kernel of NCCL waits for ever:
there the thread looks whether launched work comes to its end, and ends the process if it does not.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._distributed_c10d import Store

from meta.base.errors import DistributedError
from meta.base.source import innermost_user_line, line_of
from meta.runtime.mesh import ranks_text

FAILURE_KEY = "failure"
MESSAGE = "the ranks do not go on together"
STORE_LOST = "the store is gone, and with it rank 0 or the launcher"
_GRACE_PERIODS = 4
"""Periods in which a rank that is alive writes its row, or says why it ends."""


class Watchdog:
    """The rows of all ranks, and the thread that writes this rank's.

    Parameters
    ----------
    store: a client of the store of its own. keeps_store: whether the store is in this process.
    limit: seconds after which waiting is an error. device: the number of the GPU; None on the CPU.

    Attributes
    ----------
    margin: how much earlier a wait has to end for the error to come within the limit.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        limit: float,
        keeps_store: bool,
        device: int | None,
    ) -> None:
        self.rank, self.size, self.limit, self.device = rank, size, limit, device
        self.keeps_store = keeps_store
        # The more ranks, the less often each asks the one store.
        self._period = min(max(0.25, size / 500), limit / 40)
        self.margin = 2 * _GRACE_PERIODS * self._period
        self._store = store
        self._calls: dict[str, int] = {}
        self._within: list[str] = []
        self._ended = ""
        self._beats = 0
        self._failure = ""
        # What a device has yet to do, with the time of its launch; when it last got on.
        self._launched: deque[tuple[str, float, Any]] = deque()
        self._got_on = 0.0
        # What groups are being made, and since when.
        self._joining: tuple[str, float] | None = None
        self._main = threading.main_thread().ident
        self._stop = threading.Event()
        self._hook: Callable[..., Any] = sys.excepthook
        self._write_row()
        self._thread = threading.Thread(target=self._watch, name="meta ranks", daemon=True)
        self._thread.start()

    # What this rank does.

    def enter(self, axis: str, call: str) -> None:
        """Note that a collective is begun; DistributedError if a failure is known already."""
        if self._failure:
            raise DistributedError(MESSAGE, op=_operator_name(call), found=self._failure)
        self._calls[axis] = self._calls.get(axis, 0) + 1
        self._within.append(call)

    def leave(self) -> None:
        """Note that the innermost collective has returned."""
        self._within.pop()

    @contextmanager
    def joining(self, what: str) -> Iterator[None]:
        """Let a block make groups with all other ranks. DistributedError if that fails; where it
        takes longer than the limit, for which PyTorch does not care, the process ends.
        """
        self._joining = what, time.monotonic()
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, DistributedError):
                raise
            found = self._found("", range(self.size), error)
            expected = f"all {self.size} ranks in {what} within {self.limit:g} s"
            raise DistributedError(MESSAGE, expected=expected, found=found) from error
        finally:
            self._joining = None

    def launched(self, call: str) -> None:
        """Note work on the current stream of the device, which is to come to its end."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._launched.append((call, time.monotonic(), event))

    def report(self, kind: type[BaseException], error: BaseException | None, trace: Any) -> None:
        """Tell the others of an exception that ends this process; a `sys.excepthook`."""
        if not self._failure:
            line = innermost_user_line(trace)
            where = "" if line is None else f", at {line[0]}:{line[1]}"
            text = str(error).splitlines()[:1]
            said = f"{kind.__name__}: {text[0]}" if text else kind.__name__
            self._fail(f"rank {self.rank} raised {said}{where}")
        if self.keeps_store:
            time.sleep(3 * self._period)  # until the others have read why the store goes away
        self._hook(kind, error, trace)

    def install(self) -> None:
        """Let `report` be told of exceptions that end the process."""
        self._hook, sys.excepthook = sys.excepthook, self.report

    def end(self, why: str) -> None:
        """Tell the others that this rank leaves, and stop the thread."""
        if self._ended:
            return
        self._ended = why
        if sys.excepthook == self.report:
            sys.excepthook = self._hook
        self._stop.set()
        self._thread.join(2.0)
        try:
            self._write_row()
            if self.keeps_store and not self._failure:
                self._wait_for_ends()
        except RuntimeError:
            pass  # the store went away before this rank did

    def is_broken(self) -> bool:
        """Whether a failure is known: groups of processes are of no use any more."""
        return bool(self._failure)

    # What others do.

    def failure(
        self, axis: str, call: str, members: Sequence[int], cause: BaseException
    ) -> DistributedError:
        """Return the error of a collective that failed, and tell the others."""
        limit = f"{self.limit:g} s"
        return DistributedError(
            MESSAGE,
            op=_operator_name(call),
            expected=f"{ranks_text(members)} in {call} along {axis!r} within {limit}",
            found=self._found(axis, members, cause),
            hint="the others' own messages, and those of the launcher; a rank that only takes "
            "long needs meta.distributed.init(timeout=SECONDS)",
        )

    def meet(self, name: str, text: str = "") -> list[str]:
        """Wait for all ranks, through the store; return the text of each.

        Raises DistributedError, which names those that did not come within the limit.
        """
        try:
            keys = [f"{name}/{rank}" for rank in range(self.size)]
            self._store.set(keys[self.rank], text)
            # The last one says that all are there, so that each asks for one key only.
            there = f"{name}/all"
            if self._store.add(f"{name}/count", 1) == self.size:
                self._store.set(there, "")
            deadline = time.monotonic() + self.limit - self.margin
            pause = 0.001
            while not self._store.check([there]):
                if self._failure or time.monotonic() > deadline:
                    missing = [r for r, key in enumerate(keys) if not self._store.check([key])]
                    self._fail(
                        f"{ranks_text(missing)} of {self.size} did not come{self._where(missing)}"
                    )
                    raise DistributedError(
                        MESSAGE,
                        expected=f"all in {name} within {self.limit:g} s",
                        found=self._failure,
                    )
                time.sleep(pause)
                pause = min(2 * pause, self._period)
            return [one.decode() for one in self._store.multi_get(keys)]
        except RuntimeError as error:
            if isinstance(error, DistributedError):
                raise
            raise DistributedError(
                MESSAGE, found=f"{STORE_LOST} ({_torch_message(error)})"
            ) from error

    def _where(self, ranks: Sequence[int]) -> str:
        rows = self._rows(ranks)
        told = [f"rank {r} is at {row['line']}" for r, row in rows.items() if row.get("line")]
        return "".join(f"; {one}" for one in told)

    def _found(self, axis: str, members: Sequence[int], cause: BaseException) -> str:
        """Return what is wrong, as the rank that found it first says."""
        try:
            self._read_failure()
            before = rows = self._rows(members)
            silent: list[int] = []
            for _ in range(_GRACE_PERIODS):
                if self._failure or any(row.get("ended") for row in rows.values()):
                    break
                time.sleep(self._period)
                self._read_failure()
                rows = self._rows(members)
            else:
                silent = [r for r in members if rows[r].get("beats") == before[r].get("beats")]
            if not self._failure:
                self._fail(self._missing(axis, rows, silent, cause))
        except RuntimeError:
            if not self._failure:
                self._failure = f"{STORE_LOST} ({_torch_message(cause)})"
        return self._failure

    def _missing(
        self,
        axis: str,
        rows: dict[int, dict[str, Any]],
        silent: Sequence[int],
        cause: BaseException,
    ) -> str:
        """Return which ranks are missing in this one's last collective, and where they are."""
        own = self._calls.get(axis, 0)
        told = []
        for rank, row in rows.items():
            done = row.get("calls", {}).get(axis, 0)
            behind = f", after {done - bool(row.get('in'))} of {own} collectives along {axis!r}"
            behind = behind if axis else ""
            if rank == self.rank:
                continue
            if row.get("ended"):
                told.append(f"rank {rank} has left ({row['ended']}){behind}")
            elif rank in silent:
                told.append(f"rank {rank} is gone: it gives no sign of life any more")
            elif done < own:
                at = f"in {row['in']}" if row["in"] else f"at {row['line']}"
                told.append(f"rank {rank} did not come: it is {at}{behind}")
        return "; ".join(told) or f"all ranks are there, but: {_torch_message(cause)}"

    # The store.

    def _fail(self, text: str) -> None:
        """Write down a failure, unless another rank has written one: then that is known here."""
        try:
            self._failure = self._store.compare_set(FAILURE_KEY, "", text).decode()
        except RuntimeError:
            self._failure = text

    def _read_failure(self) -> None:
        if not self._failure and self._store.check([FAILURE_KEY]):
            self._failure = self._store.get(FAILURE_KEY).decode()

    def _write_row(self) -> None:
        self._beats += 1
        frame = sys._current_frames().get(self._main or 0)
        line = line_of(frame)
        row = {
            "beats": self._beats,
            "calls": self._calls,
            "in": self._within[-1:] and self._within[-1],
            "line": "" if line is None else f"{line[0]}:{line[1]}",
            "ended": self._ended,
        }
        self._store.set(f"row/{self.rank}", json.dumps(row))

    def _rows(self, ranks: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Return what ranks have written last; an empty row for one that has not come yet."""
        keys = {rank: f"row/{rank}" for rank in ranks}
        there = [rank for rank, key in keys.items() if self._store.check([key])]
        found = self._store.multi_get([keys[rank] for rank in there]) if there else []
        rows = {r: json.loads(row) for r, row in zip(there, found, strict=True)}
        return {rank: rows.get(rank, {}) for rank in ranks}

    def _wait_for_ends(self) -> None:
        """Let the others leave before the store goes away with this process, for a while."""
        deadline = time.monotonic() + min(5.0, self.limit)
        others = [r for r in range(self.size) if r != self.rank]
        while time.monotonic() < deadline:
            if all(row.get("ended") for row in self._rows(others).values()):
                return
            time.sleep(0.02)

    # The thread.

    def _watch(self) -> None:
        if self.device is not None:
            torch.cuda.set_device(self.device)
        there = True
        while not self._stop.wait(self._period):
            try:
                if there:
                    self._write_row()
                    self._read_failure()
            except RuntimeError:  # the store is gone: with whom, the collectives will say
                there = False
            if self._launched:
                self._look_at_device()
            if self._joining is not None:
                self._look_at_joining(*self._joining)

    def _look_at_joining(self, what: str, since: float) -> None:
        """End the process if groups are not made in time."""
        if time.monotonic() - since < self._patience():
            return
        if not self._failure:
            self._fail(self._stuck("", what))
        if self._joining is not None:
            self._end_process(
                "", f"all {self.size} ranks in {what} within {self.limit:g} s", "what waits"
            )

    def _patience(self) -> float:
        """Return the seconds for which what cannot be interrupted may wait."""
        return min(5.0, self.limit / 4) if self._failure else self.limit - self.margin

    def _look_at_device(self) -> None:
        """End the process if launched work does not come to its end."""
        now = time.monotonic()
        try:
            while self._launched and self._launched[0][2].query():
                self._launched.popleft()
                self._got_on = now
        except RuntimeError:  # the device has failed, which whoever uses it next is told
            self._launched.clear()
        if not self._launched:
            return
        call, since, _ = self._launched[0]
        waited = now - max(since, self._got_on)
        if waited < self._patience():
            return
        if not self._failure:
            self._fail(self._stuck(call, call))
        expected = f"{call} to end on the device within {self.limit:g} s"
        self._end_process(_operator_name(call), expected, "a kernel that waits")

    def _end_process(self, op: str, expected: str, who: str) -> None:
        error = DistributedError(
            MESSAGE,
            op=op or None,
            expected=expected,
            found=self._failure,
            hint=f"{who} for another rank cannot be interrupted: the process ends",
        )
        error.span = None
        print(f"[rank{self.rank}]: {error}", file=sys.stderr, flush=True)
        os._exit(1)

    def _stuck(self, call: str, what: str) -> str:
        """Return why this rank waits in a call, as far as the rows of all ranks tell."""
        try:
            before = self._rows(range(self.size))
            time.sleep(2 * self._period)
            rows = self._rows(range(self.size))
        except RuntimeError:
            return STORE_LOST
        most: dict[str, int] = dict(self._calls)
        told = []
        for rank, row in rows.items():
            if rank == self.rank:
                continue
            if not row or row["ended"] or row["beats"] == before[rank].get("beats"):
                told.append(f"rank {rank} is gone")
                continue
            behind = [axis for axis, n in most.items() if row["calls"].get(axis, 0) < n]
            if call and behind:
                at = f"in {row['in']}" if row["in"] else f"at {row['line']}"
                told.append(f"rank {rank} did not come: it is {at}")
        return "; ".join(told) or f"all ranks are there, and wait in {what} or what follows"


def _torch_message(cause: BaseException) -> str:
    """Return what an error of PyTorch's says, without its place in the source and its advice."""
    line = re.sub(r"^\[[^]]*\] ", "", (str(cause).splitlines() or [""])[0])
    return line.partition(". This is typically")[0]


def _operator_name(call: str) -> str:
    return call.partition("(")[0]
