"""The profiler: how long each instruction of a program takes, as a table, records or a trace."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from meta.base.device import Device
from meta.base.dtype import FROM_TORCH
from meta.base.errors import ArgumentError
from meta.base.html import Html, bytes_text, fragment, table, tag, time_text
from meta.ir import TensorType, type_bytes
from meta.runtime.mesh import current_mesh
from meta.vm.compiler.kernels import BoundProgram
from meta.vm.compiler.launch_sites import LaunchSite
from meta.vm.inspect.traces import TraceOrigin, write_trace
from meta.vm.run.observers import observed, operands
from meta.vm.run.rank_consistency import collectives, slot


@dataclass(frozen=True, slots=True)
class TimedLaunch:
    """One execution of an instruction: when it started and ended, in seconds from the run's start,
    and the types of the arrays that it read and made.
    """

    site: LaunchSite
    start: float
    end: float
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """What was measured of one instruction.

    Attributes
    ----------
    calls: how often it ran in one run of the program. seconds: the median over the repeats of the
    time that all its calls of one run took. read, written: bytes of the arrays of one run.
    """

    site: LaunchSite
    calls: int
    seconds: float
    read: int
    written: int
    share: float
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]

    def record(self) -> dict[str, Any]:
        """Return the row as values that JSON has."""
        return {
            **self.site.record(),
            "calls": self.calls,
            "seconds": self.seconds,
            "share": self.share,
            "bytes_read": self.read,
            "bytes_written": self.written,
            "inputs": [str(t) for t in self.inputs],
            "outputs": [str(t) for t in self.outputs],
        }


class Profile:
    """The times of one program; prints as a table, the slowest instruction first.

    Attributes
    ----------
    rows: one per instruction that ran, in order of first execution. seconds: the time of all
    kernels of a run. device: where it ran. repeat: how many runs were measured.
    """

    def __init__(
        self, device: Device, runs: Sequence[Sequence[TimedLaunch]], origin: TraceOrigin
    ) -> None:
        self.device, self.repeat, self._origin = device, len(runs), origin
        self._runs = runs
        times: dict[int, list[float]] = {}
        for run in runs:
            total: dict[int, float] = {}
            for launch in run:
                number = launch.site.number
                total[number] = total.get(number, 0.0) + launch.end - launch.start
            for number, seconds in total.items():
                times.setdefault(number, []).append(seconds)
        medians = {number: median(found) for number, found in times.items()}
        self.seconds = sum(medians.values())
        self.rows = [self._row(number, medians[number]) for number in medians]

    def _row(self, number: int, seconds: float) -> ProfileRow:
        launches = [launch for launch in self._runs[-1] if launch.site.number == number]
        return ProfileRow(
            launches[0].site,
            len(launches),
            seconds,
            sum(type_bytes(t) for launch in launches for t in launch.inputs),
            sum(type_bytes(t) for launch in launches for t in launch.outputs),
            seconds / self.seconds if self.seconds else 0.0,
            launches[0].inputs,
            launches[0].outputs,
        )

    def records(self) -> list[dict[str, Any]]:
        """Return one plain record per instruction, in order of execution."""
        return [row.record() for row in self.rows]

    def table(self, top: int | None = 20) -> str:
        """Return the ``top`` slowest instructions as text (all: None)."""
        rows = sorted(self.rows, key=lambda row: -row.seconds)
        shown = rows if top is None else rows[:top]
        lines = [
            f"{len(rows)} instructions on {self.device}, {self.seconds * 1e6:.1f} us in kernels, "
            f"median of {self.repeat}",
            f"{'us':>10} {'share':>6} {'calls':>5} {'read':>10} {'written':>10}  kernel",
        ]
        for row in shown:
            name = ".".join(filter(None, (row.site.dialect, row.site.operator)))
            line = f"  {row.site.span}" if row.site.span else ""
            lines.append(
                f"{row.seconds * 1e6:10.2f} {row.share:6.1%} {row.calls:5d} {row.read:10d} "
                f"{row.written:10d}  {name}{line}"
            )
        if len(shown) < len(rows):
            lines.append(f"... and {len(rows) - len(shown)} more")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()

    __repr__ = __str__

    @property
    def title(self) -> str:
        """What was measured, in a line."""
        return (
            f"{len(self.rows)} instructions on {self.device}, {time_text(self.seconds)} in "
            f"kernels, median of {self.repeat}"
        )

    def _repr_html_(self) -> str:
        rows = [
            (
                time_text(row.seconds),
                share_bar(row.share),
                row.calls,
                bytes_text(row.read),
                bytes_text(row.written),
                ".".join(filter(None, (row.site.dialect, row.site.operator))),
                row.site.span or "",
            )
            for row in sorted(self.rows, key=lambda row: -row.seconds)
        ]
        head = ("time", "share", "calls", "read", "written", "kernel", "line")
        shown = table(head, rows, numbers=(0, 2, 3, 4), code=(5, 6), most=20)
        return fragment(tag("div", self.title, class_="title"), shown)

    def chrome_trace(self, path: str | os.PathLike[str]) -> Path:
        """Write the last run as a trace that Chrome (chrome://tracing) and Perfetto show, all or
        nothing; return the file.

        Collectives say their axis, its ranks and their bytes. On one of several ranks the name of
        the file says which: "net.rank3.json" for "net.json"; `meta.vm.merge_traces`, or ``python -m
        meta traces``, makes one trace of those of all ranks. FileError if it cannot be written.
        """
        return write_trace(path, self._runs[-1], self.device, self._origin)


def share_bar(share: float) -> Html:
    """Return a share of a whole as a bar with its number."""
    style = f"display:inline-block;height:.6em;width:{6 * share:.3f}em;background:#d9822b;"
    bar = tag("span", style=f"{style}margin-right:.4em;border-radius:2px")
    return tag("span", bar, f"{share:.1%}", style="white-space:nowrap")


def _wait(device: Device) -> None:
    if device.kind == "cuda":
        torch.cuda.synchronize()


def _mark(device: Device) -> Any:
    """Return a moment: on CUDA on the current stream, between the kernels that it runs."""
    if device.kind != "cuda":
        return time.perf_counter_ns()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _seconds(start: Any, end: Any) -> float:
    """Return the time between two moments, once the device is done."""
    if isinstance(start, int):
        return float(end - start) * 1e-9
    return float(start.elapsed_time(end)) * 1e-3


def profile(
    program: BoundProgram, arguments: Callable[[], list[torch.Tensor]], repeat: int, warmup: int
) -> Profile:
    """Run a program ``warmup`` + ``repeat`` times, each on new ``arguments``, and measure the last
    ``repeat``.

    All ranks along the axes of its collectives do this together, and begin each run at the same
    time. Raises ArgumentError for numbers of runs that make no sense.
    """
    if repeat < 1 or warmup < 0:
        raise ArgumentError(
            "a profile needs a run",
            expected="repeat >= 1, warmup >= 0",
            found=f"repeat={repeat}, warmup={warmup}",
        )
    device = program.device
    marks: list[tuple[LaunchSite, Any, Any, tuple[TensorType, ...], tuple[TensorType, ...]]] = []

    def observer(site: LaunchSite, run: Callable[..., Any], values: tuple[Any, ...]) -> Any:
        start = _mark(device)
        result = run(*values)
        end = _mark(device)
        inputs, outputs = operands(site, values, result)
        marks.append((site, start, end, _types(inputs), _types(outputs)))
        return result

    world = current_mesh()
    axes = {slot(kernel, "over") for kernel, _ in collectives(program.code)}
    linked = observed(program, observer)
    runs = []
    for number in range(warmup + repeat):
        given = arguments()
        marks.clear()
        _wait(device)
        if axes:
            world.gather(b"", "a profile", axes)
        first = _mark(device)
        linked.run(given)
        _wait(device)
        if number >= warmup:
            runs.append(
                [
                    TimedLaunch(site, _seconds(first, start), _seconds(first, end), read, made)
                    for site, start, end, read, made in marks
                ]
            )
    return Profile(device, runs, TraceOrigin.of(world))


def _types(values: tuple[Any, ...]) -> tuple[TensorType, ...]:
    return tuple(
        TensorType(tuple(v.shape), FROM_TORCH[v.dtype])
        for v in values
        if isinstance(v, torch.Tensor)
    )
