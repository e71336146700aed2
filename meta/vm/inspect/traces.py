"""Traces in Chrome's format: of one run of a program, on one rank, and of all ranks as one.

A file has one complete event ("ph": "X") per launch, times in microseconds (Google, "Trace Event
Format", docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU). A rank is a
process of the trace. What was started and is waited for later is on a line of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from meta.base.device import Device
from meta.base.errors import FormatError
from meta.base.files import read_file, replacing
from meta.base.registry import OPERATORS
from meta.ir import type_bytes
from meta.runtime.mesh import RankMesh
from meta.vm.compiler.code import KernelRef
from meta.vm.run.rank_consistency import slot

if TYPE_CHECKING:
    from meta.vm.compiler.launch_sites import LaunchSite
    from meta.vm.inspect.profile import TimedLaunch

Event = dict[str, Any]
KERNELS, EXCHANGES = 0, 1
"""The lines of a process: launches, and exchanges between their start and their end."""
STARTED, WAIT = "_start", "collective_wait"
"""How names end of collectives that go on beside other kernels, and what waits for them."""
TOGETHER = frozenset(
    ("all_reduce", "multi_tensor_all_reduce", "reduce_from", "all_gather", "gather_from")
) | {"reduce_scatter", "all_to_all"}
"""Collectives that no rank leaves before all have come: by their ends clocks are set."""


@dataclass(frozen=True, slots=True)
class TraceOrigin:
    """Where a trace is from: the number of the rank, and its place along each axis, none for a
    process alone.
    """

    rank: int = 0
    axes: Mapping[str, int] | None = None

    @classmethod
    def of(cls, world: RankMesh) -> TraceOrigin:
        """Return that of a rank."""
        return cls(world.rank, world.coordinates) if world.size > 1 else cls()

    def __str__(self) -> str:
        if self.axes is None:
            return "meta"
        return f"rank {self.rank} ({', '.join(f'{a}={i}' for a, i in self.axes.items())})"


def exchange(site: LaunchSite, inputs: Sequence[Any], outputs: Sequence[Any]) -> dict[str, Any]:
    """Return the axis of the mesh, its ranks, and the bytes of a collective: those of its arguments
    or of its results, whichever are more; nothing for another kernel.
    """
    op = OPERATORS.get(site.operator)
    if op is None or not op.collective or not isinstance(site.kernel, KernelRef):
        return {}
    count = max(sum(map(type_bytes, types)) for types in (inputs, outputs))
    over, size = slot(site.kernel, "over"), slot(site.kernel, "size")
    return {"over": over, "ranks": size, "bytes": count}


def write_trace(
    path: str | os.PathLike[str], run: Sequence[TimedLaunch], device: Device, origin: TraceOrigin
) -> Path:
    """Write a run, all or nothing, and return the file: of several ranks each has one of its own,
    "name.rank3.json" for "name.json". FileError if it cannot be written.
    """
    file = Path(path)
    if origin.axes is not None:
        file = file.with_name(f"{file.stem}.rank{origin.rank}{file.suffix}")
    content: dict[str, Any] = {"traceEvents": events(run, device, origin), "displayTimeUnit": "ns"}
    if origin.axes is not None:
        content["otherData"] = {"rank": origin.rank, "axes": dict(origin.axes)}
    with replacing(file) as part:
        Path(part).write_text(json.dumps(content), "utf-8")
    return file


def events(run: Sequence[TimedLaunch], device: Device, origin: TraceOrigin) -> list[Event]:
    """Return the events of a run."""
    found = list(_names(device, origin))
    begun: list[Event] = []
    for launch in run:
        site = launch.site
        about = exchange(site, launch.inputs, launch.outputs)
        types = {"inputs": launch.inputs, "outputs": launch.outputs}
        event = {
            "name": site.operator,
            "cat": site.dialect or "kernel",
            "ph": "X",
            "ts": launch.start * 1e6,
            "dur": (launch.end - launch.start) * 1e6,
            "pid": origin.rank,
            "tid": KERNELS,
            "args": {**site.record(), **about, **{n: list(map(str, t)) for n, t in types.items()}},
        }
        found.append(event)
        if about and site.operator.endswith(STARTED):
            begun.append(event)
        elif site.operator == WAIT:
            found.append(_in_flight(begun, event))
    return found


def _names(device: Device, origin: TraceOrigin) -> Iterator[Event]:
    lines = {KERNELS: str(device), EXCHANGES: f"{device}: exchanges beside kernels"}
    base = {"ph": "M", "pid": origin.rank}
    yield {**base, "name": "process_name", "tid": KERNELS, "args": {"name": str(origin)}}
    if origin.axes is None:
        del lines[EXCHANGES]
    else:
        sort = {"sort_index": origin.rank}
        yield {**base, "name": "process_sort_index", "tid": KERNELS, "args": sort}
    for line, name in lines.items():
        yield {**base, "name": "thread_name", "tid": line, "args": {"name": name}}


def _in_flight(begun: list[Event], end: Event) -> Event:
    """Return the event of what was started before and ends by a wait: the first along its axis of
    tensors of the same types. It is no longer among what has begun.
    """
    told = ("over", "inputs")
    started = next(b for b in begun if all(b["args"][t] == end["args"][t] for t in told))
    begun.remove(started)
    name = started["name"].removesuffix(STARTED)
    until = end["ts"] + end["dur"]
    return {**started, "name": name, "tid": EXCHANGES, "dur": until - started["ts"]}


@dataclass(frozen=True, slots=True)
class _Trace:
    """A file of one rank."""

    path: str
    rank: int
    axes: dict[str, int]
    events: list[Event]

    def ends(self, over: str) -> list[float]:
        """Return when collectives along an axis end: of those that clocks are set by."""
        return [
            e["ts"] + e["dur"]
            for e in self.events
            if e.get("ph") == "X" and e["name"] in TOGETHER and e["args"].get("over") == over
            if e.get("tid") == KERNELS
        ]

    def shares(self, other: _Trace) -> str | None:
        """Return the axis along which two ranks are of one group; None if there is none."""
        differ = [axis for axis in self.axes if self.axes[axis] != other.axes[axis]]
        return differ[0] if len(differ) == 1 else None


def merge_traces(
    paths: Sequence[str | os.PathLike[str]], path: str | os.PathLike[str]
) -> dict[int, float]:
    """Write the traces of ranks, files of `meta.vm.Profile.chrome_trace`, as one trace; return the
    microseconds that were added to the times of each rank.

    Clocks of ranks are set by the ends of collectives that no rank leaves before all have come: by
    the median of the differences, from the first rank on. A rank that has none in common with
    others keeps its times.

    Raises FormatError for a file that is none of a rank, for two of one rank, and for ranks that
    ran different programs; FileError if the trace cannot be written.

    >>> from tempfile import TemporaryDirectory
    >>> total = meta.model.trace(lambda x: meta.distributed.all_reduce(x, "dp"))
    >>> def trace(folder):
    ...     x = meta.ones(3, device="cpu")
    ...     return meta.vm.compile(total, x).profile(x, repeat=1).chrome_trace(f"{folder}/run.json")
    >>> with TemporaryDirectory() as folder:
    ...     files = meta.distributed.simulate({"dp": 2}).run(lambda: trace(folder))
    ...     sorted(meta.vm.merge_traces(files, f"{folder}/all.json"))
    [0, 1]
    """
    found: dict[int, _Trace] = {}
    for one in paths:
        trace = _read(one)
        if trace.rank in found:
            where = f"{found[trace.rank].path} and {trace.path}"
            raise FormatError(f"two traces are of rank {trace.rank}", found=where)
        if found and next(iter(found.values())).axes.keys() != trace.axes.keys():
            raise FormatError("the traces are of different meshes", found=trace.path)
        found[trace.rank] = trace
    if not found:
        raise FormatError("there are no traces", expected="files of ranks")
    shifts = _shifts([found[rank] for rank in sorted(found)])
    merged = [_shifted(e, shifts[rank]) for rank in sorted(found) for e in found[rank].events]
    with replacing(path) as part:
        content = {"traceEvents": merged, "displayTimeUnit": "ns"}
        Path(part).write_text(json.dumps(content), "utf-8")
    return shifts


def _read(path: str | os.PathLike[str]) -> _Trace:
    try:
        content = json.loads(read_file(path))
        data = content["otherData"]
        rank, axes, listed = data["rank"], data["axes"], content["traceEvents"]
        fits = type(rank) is int and rank >= 0 and isinstance(axes, dict)
        if not fits or not all(map(_is_event, listed)):
            raise ValueError(path)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise FormatError(
            f"{os.fspath(path)} is no trace of a rank",
            expected="a file that Profile.chrome_trace wrote on one of several ranks",
        ) from None
    return _Trace(os.fspath(path), rank, axes, listed)


def _is_event(event: Any) -> bool:
    if not isinstance(event, dict) or event.get("ph") not in ("M", "X"):
        return False
    numbers = (event["ts"], event["dur"]) if event["ph"] == "X" else ()
    args = event.get("args")
    return isinstance(args, dict) and all(isinstance(n, int | float) for n in numbers)


def _shifts(traces: list[_Trace]) -> dict[int, float]:
    """Return what to add to the times of each rank, from one whose clock is set to the next."""
    found: dict[int, float] = {}
    for first in traces:
        waiting = [] if first.rank in found else [first]
        found.setdefault(first.rank, 0.0)
        while waiting:
            trace = waiting.pop(0)
            for other in traces:
                over = trace.shares(other) if other.rank not in found else None
                if over is None:
                    continue
                mine, theirs = trace.ends(over), other.ends(over)
                if len(mine) != len(theirs):
                    raise FormatError(
                        f"rank {trace.rank} and rank {other.rank} ran different programs",
                        found=f"{len(mine)} and {len(theirs)} collectives along {over!r}",
                    )
                if mine:
                    differences = (a - b for a, b in zip(mine, theirs, strict=True))
                    found[other.rank] = found[trace.rank] + median(differences)
                    waiting.append(other)
    return found


def _shifted(event: Event, shift: float) -> Event:
    return event if "ts" not in event else {**event, "ts": event["ts"] + shift}
