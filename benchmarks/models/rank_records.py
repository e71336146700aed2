"""What distributed.py measures: groups of ranks that take turns, and what their figures mean."""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from report import say
from worker_processes import GroupFailed, WorkerGroup, rank_environments

from models.rank_contenders import HALF, JOINED, OURS, THEIRS
from models.rank_rows import RANK_ROWS

SCALING, TO_BEST, LOSSES, NOISE = 1.03, 0.8, 3e-2, 1.25
"""The goals: our step on most ranks as a share of that on one, and of the best torch contender's on
as many; how far losses may be apart, as a share of themselves, in bfloat16: so much, or so many
times what torch's are, since roundings grow with the steps.
"""
PATIENCE = 20.0
"""Seconds in which ranks part from each other, before they are ended."""
Record = dict[str, Any]
Key = tuple[str, int]
"""A contender and its number of ranks."""


@dataclass(frozen=True)
class Ranks:
    """What is measured and how.

    Attributes
    ----------
    contenders, counts: names and numbers of ranks. rounds, steps: turns of each, and steps of a
    turn. first: steps whose losses are compared. limit: seconds for each answer of a contender.
    device: "cpu" or "cuda". gigabytes: of a device. apart: whether each contender has the machine
    for itself. joined: whether losses are compared with those of one device that has the batches
    of all ranks. flags: more options of `rank_worker`. records: where figures go as they come.
    traces: a folder for traces of torch.profiler, or None.
    """

    contenders: list[str]
    counts: list[int]
    rounds: int
    steps: int
    first: int
    limit: float
    device: str
    gigabytes: float
    apart: bool = False
    joined: bool = False
    flags: tuple[str, ...] = ()
    records: Path | None = None
    traces: Path | None = None

    @property
    def most(self) -> int:
        """The largest number of ranks."""
        return max(self.counts)

    def keys(self, joined: bool) -> list[Key]:
        """Return contenders with their numbers of ranks: of one contender in a row, which take
        turns even where not all have room. What shards is for several ranks.
        """
        alone = ("meta", HALF, "ddp")
        keys = [
            (name, count)
            for name in self.contenders
            for count in sorted(self.counts, reverse=True)
            if count > 1 or name in alone
        ]
        return [*keys, *([(JOINED, 1)] if joined else [])]

    def shifts(self, keys: list[Key], gigabytes: float) -> list[list[Key]]:
        """Return who is there at the same time: as many as a device's memory holds."""
        room = 1 if self.apart else max(1, int(self.gigabytes // gigabytes))
        return [keys[i : i + room] for i in range(0, len(keys), room)]

    def measure(self, row: str) -> dict[Key, Record]:
        """Return the records of a row by contender and ranks; each is kept as it comes."""
        found: dict[Key, Record] = {}
        keys = self.keys(self.joined and self.most > 1 and not RANK_ROWS[row].images)
        for shift in self.shifts(keys, RANK_ROWS[row].gigabytes):
            for key, record in self._shift(row, shift):
                found[key] = record
                say(f"{row} {named(key)}: {summary(record)}")
                self._keep(row, key, record)
        return found

    def _keep(self, row: str, key: Key, record: Record) -> None:
        if self.records is not None:
            with self.records.open("a") as lines:
                line = {"row": row, "contender": key[0], "ranks": key[1], **record}
                print(json.dumps(line), file=lines)

    def _group(self, row: str, key: Key, folder: str, crowd: int) -> WorkerGroup:
        name, count = key
        command = [sys.executable, "-m", "models.rank_worker", row, name, "--device", self.device]
        command += ["--most", str(self.most), "--timeout", str(self.limit), *self.flags]
        command += ["--first", str(self.first), "--steps", str(self.steps)]
        threads = max(1, (os.cpu_count() or 1) // crowd)
        more = {"TORCHINDUCTOR_COMPILE_THREADS": str(threads)}
        environments = rank_environments(count, f"{folder}/{name}-{count}", **more)
        return WorkerGroup(command, environments, self.limit)

    def _shift(self, row: str, keys: list[Key]) -> Iterator[tuple[Key, Record]]:
        crowd = sum(count for _, count in keys)
        with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
            groups, records = {}, {}
            say(f"{row}: {', '.join(map(named, keys))} start")
            for key in keys:
                groups[key] = self._group(row, key, folder, crowd)
                running.callback(groups[key].end)

            def told(key: Key, line: str | None = None) -> list[Record] | None:
                """Return what a group answers; None, if it has failed."""
                group = groups[key]
                try:
                    return group.answers() if line is None else group.tell(line)
                except GroupFailed as error:
                    group.show_errors(f"{row} {named(key)}")
                    group.end()
                    del groups[key]
                    records[key] = {"failed": str(error)}
                    return None

            times: dict[Key, list[float]] = {}
            host: dict[Key, list[float]] = {}
            for key in keys:
                answers = told(key)
                if answers is None:
                    yield key, records[key]
                    continue
                each = [answer["losses"] for answer in answers]
                losses = [statistics.fmean(step) for step in zip(*each, strict=True)]
                seconds = max(answer["first_call"] for answer in answers)
                records[key] = {"losses": losses, "first_call": seconds, "crowd": len(keys)}
                say(f"{row} {named(key)}: {seconds:.1f} s to the first step, loss {losses[0]:.4f}")
            for _ in range(self.rounds):
                for key in list(groups):
                    answers = told(key, "turn")
                    if answers is None:
                        yield key, records[key]
                        continue
                    each = [answer["ms"] for answer in answers]
                    times.setdefault(key, []).extend(map(max, zip(*each, strict=True)))
                    own = [statistics.median(answer["host_ms"]) for answer in answers]
                    host.setdefault(key, []).append(max(own))
            for key in list(groups) if self.traces is not None else ():
                if told(key, f"trace {self.traces}/{row}-{named(key)}") is None:
                    yield key, records[key]
            one = f"{statistics.median(times['meta', 1])}" if times.get(("meta", 1)) else ""
            for key in list(groups):
                answers = told(key, f"end {one}")
                if answers is not None:
                    records[key] |= figures(times[key], host[key], answers)
                    groups[key].end(PATIENCE)
                    del groups[key]
                yield key, records[key]


def figures(times: list[float], host: list[float], ends: list[Record]) -> Record:
    """Return the figures of a contender: of the slowest rank in each step, and of the rank with
    most memory.
    """
    parts = statistics.quantiles(times, n=5) if len(times) > 1 else [times[0]] * 4
    found: Record = {"ms": statistics.median(times), "p20": parts[0], "p80": parts[-1]}
    found |= {"host_ms": statistics.median(host)}
    for name in ("peak_mb", "reserved_mb"):
        if name in ends[0]:
            found[name] = max(end[name] for end in ends)
    if "predicted" in ends[0]:
        found["predicted"] = ends[0]["predicted"]
    if "graphs" in ends[0]:
        found["graphs"] = [end["graphs"] for end in ends]
        found["not_in_graphs"] = ends[0]["not_in_graphs"]
    return found


def compare(found: dict[Key, Record], most: int) -> Key | None:
    """Note in each record on most ranks how far its losses are from those of a reference, which is
    returned: one device with the joined batch, or else torch's, or ours.
    """
    right = {key: record for key, record in found.items() if "failed" not in record}
    names = [(JOINED, 1), *((name, most) for name in (*THEIRS, *OURS))]
    reference = next((key for key in names if key in right), None)
    if reference is None:
        return None
    wanted = right[reference]["losses"]
    for (_, count), record in right.items():
        if count == most and record is not right[reference]:
            pairs = zip(record["losses"], wanted, strict=True)
            shares = [abs(a - b) / abs(b) for a, b in pairs]
            # A loss that is no number is as far as can be.
            record["loss_apart"] = max(s if s == s else float("inf") for s in shares)
    return reference


def missed(found: dict[Key, Record], most: int, device: str) -> list[str]:
    """Return the goals that a row misses; those of contenders that were not asked for are none."""
    right = {key: record for key, record in found.items() if "failed" not in record}
    bad = [f"{named(key)} failed" for key in found if key not in right]
    ours, one = right.get(("meta", most)), right.get(("meta", 1))
    theirs = [right[name, most] for name in THEIRS if (name, most) in right]
    if ours is not None and one is not None and most > 1 and ours["ms"] > SCALING * one["ms"]:
        bad.append("scaling")
    if ours is not None and theirs and ours["ms"] > TO_BEST * min(r["ms"] for r in theirs):
        bad.append("to best")
    zero, sharded = right.get(("zero3", most)), right.get(("fsdp2", most))
    if zero is not None and sharded is not None:
        if zero["ms"] > sharded["ms"]:
            bad.append("zero3 time")
        if zero.get("peak_mb", 0.0) > sharded.get("peak_mb", 0.0):
            bad.append("zero3 memory")
    apart = [NOISE * a for r in theirs if math.isfinite(a := r.get("loss_apart", 0.0))]
    for (name, count), record in right.items():
        whole = {"graphs": [1] * count, "not_in_graphs": []}
        if device == "cuda" and name in OURS and {k: record[k] for k in whole} != whole:
            bad.append(f"{named((name, count))} is no single graph")
        if name in OURS and record.get("loss_apart", 0.0) > max([LOSSES, *apart]):
            bad.append(f"{named((name, count))} losses")
    return bad


def named(key: Key) -> str:
    """Return a contender and its ranks as text."""
    return f"{key[0]}-x{key[1]}"


def summary(record: Record) -> str:
    """Return a record in a line."""
    if "failed" in record:
        return f"failed: {record['failed']}"
    memory = f", {record['peak_mb']:.0f} MB" if "peak_mb" in record else ""
    graphs = f", graphs {record['graphs']}" if "graphs" in record else ""
    return f"{record['ms']:.3f} ms ({record['p20']:.3f} to {record['p80']:.3f}){memory}{graphs}"
