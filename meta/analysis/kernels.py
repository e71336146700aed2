"""What the kernels of a program do, and how long that will take: operations and bytes by operator
(`flops`), and time by what was measured of its calls (`cost`). The formulas are in
`meta.cost.flops`, how time is told is in `meta.cost.predict`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from meta.base.device import Device, require
from meta.base.html import bytes_text, fragment, table, tag
from meta.base.source import Span
from meta.cost.flops import NOTHING, ProgramTotal, Work, function_work, work_of
from meta.cost.predict import NO_TIME, Predictor, Time
from meta.dialect.core import FUSED
from meta.dialect.core.ir_calls import callee_name
from meta.ir import Binding, Call, GlobalVar, Module


@dataclass(frozen=True, slots=True)
class FlopsRow:
    """What one binding does. ``operator``: the operator or function that it calls."""

    binding: int
    operator: str
    work: Work
    span: Span | None

    def record(self) -> dict[str, Any]:
        """Return the row as values that JSON has."""
        return {
            "binding": self.binding,
            "operator": self.operator,
            "flops": self.work.flops,
            "bytes": self.work.bytes,
            "line": None if self.span is None else str(self.span),
        }


@dataclass(frozen=True, slots=True)
class FlopsReport:
    """The operations of a module's main: ``rows`` by binding, those that do nothing left out.

    >>> program = meta.model.Linear(3, 2).forward.program(meta.ones((4, 3)))
    >>> report = meta.analysis.flops(program.module)
    >>> report.total, report.by_operator()
    (56, {'dense': 48, 'add': 8})
    """

    rows: tuple[FlopsRow, ...]

    @property
    def total(self) -> int:
        """The operations of one call."""
        return sum(row.work.flops for row in self.rows)

    @property
    def bytes(self) -> int:
        """What the kernels of one call read and write, if nothing stays in a cache."""
        return sum(row.work.bytes for row in self.rows)

    def by_operator(self) -> dict[str, int]:
        """Return the operations by operator, the most first."""
        counts: Counter[str] = Counter()
        for row in self.rows:
            counts[row.operator] += row.work.flops
        return dict(counts.most_common())

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as values that JSON has."""
        return [row.record() for row in self.rows]

    def __str__(self) -> str:
        lines = [f"{self.total:,} operations, {self.bytes:,} bytes read and written"]
        for name, count in self.by_operator().items():
            share = count / self.total if self.total else 0.0
            lines.append(f"  {name:40s} {count:18,d} {share:7.1%}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        title = f"{self.total:,} operations, {bytes_text(self.bytes)} read and written"
        rows = [
            (name, f"{count:,}", f"{count / self.total if self.total else 0.0:.1%}")
            for name, count in self.by_operator().items()
        ]
        shown = table(("operator", "operations", "share"), rows, numbers=(1, 2), code=(0,))
        return fragment(tag("div", title, class_="title"), shown)


def flops(module: Module) -> FlopsReport:
    """Count the operations of one call of a typed module's main, at any stage of compilation.

    A call of a function counts as what the function does, and an `If` as the block with more; a
    function that calls itself is counted once, since nobody knows how often it will. A fused kernel
    reads its arguments and writes its results: what is between the two costs no bytes.

    >>> program = meta.model.Linear(3, 2).forward.program(meta.ones((4, 3)))
    >>> meta.analysis.flops(program.module).total
    56
    """

    def work(binding: Binding) -> Work | None:
        value = binding.value
        if not isinstance(value, Call):
            return None
        if not isinstance(value.callee, GlobalVar):
            return work_of(value)
        function = module.functions[value.callee.name]
        return function_work(function) if FUSED in function.attrs else None

    total = ProgramTotal(module, work, NOTHING, lambda work: work.time)
    rows = [
        FlopsRow(number, callee_name(binding.value), count, binding.span)
        for number, binding in enumerate(module.main.body.bindings)
        if (count := total.binding(binding)) != NOTHING
    ]
    return FlopsReport(tuple(rows))


@dataclass(frozen=True, slots=True)
class CostRow:
    """What one binding takes.

    Attributes
    ----------
    binding: its number. operator: the operator or function that it calls. kernel: whose it is,
    "cublas@split=2"; empty for what is no single kernel, and for a call that is not dispatched and
    was not measured. time: in microseconds, as far as it was measured and as far as it is
    estimated. span: the user's line.
    """

    binding: int
    operator: str
    kernel: str
    time: Time
    span: Span | None

    @property
    def known(self) -> str:
        """Where the time is from: "measured", "estimated" or "partly measured"."""
        if not self.time.estimated:
            return "measured"
        return "partly measured" if self.time.measured else "estimated"

    def record(self) -> dict[str, Any]:
        """Return the row as values that JSON has."""
        return {
            "binding": self.binding,
            "operator": self.operator,
            "kernel": self.kernel,
            "microseconds": self.time.total,
            "measured": self.time.measured,
            "estimated": self.time.estimated,
            "line": None if self.span is None else str(self.span),
        }


@dataclass(frozen=True, slots=True)
class CostReport:
    """The time of one run of a module's main.

    Attributes
    ----------
    rows: by binding, those that take no time left out. device, how: for what it was predicted.
    from_defaults: whether what is estimated is estimated without peaks of this device.

    >>> program = meta.model.Linear(3, 2).forward.program(meta.ones((4, 3)))
    >>> report = meta.analysis.cost(program.module, device="cpu")
    >>> report.total > 0, len(report.rows), 0 <= report.measured_share <= 1
    (True, 2, True)
    """

    rows: tuple[CostRow, ...]
    device: Device
    how: str
    from_defaults: bool

    @property
    def time(self) -> Time:
        """The time of all kernels."""
        return sum((row.time for row in self.rows), NO_TIME)

    @property
    def total(self) -> float:
        """The microseconds of one run."""
        return self.time.total

    @property
    def measured_share(self) -> float:
        """The part of `total`, from 0 to 1, that was measured; 1 for a program without kernels."""
        time = self.time
        return time.measured / time.total if time.total else 1.0

    def by_operator(self) -> dict[tuple[str, str, str], tuple[int, float]]:
        """Return calls and microseconds by operator, kernel and where the time is from, the
        longest first.
        """
        found: dict[tuple[str, str, str], tuple[int, float]] = {}
        for row in self.rows:
            name = row.operator, row.kernel, row.known
            calls, taken = found.get(name, (0, 0.0))
            found[name] = calls + 1, taken + row.time.total
        return dict(sorted(found.items(), key=lambda item: -item[1][1]))

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as values that JSON has."""
        return [row.record() for row in self.rows]

    def _title(self) -> str:
        share = self.measured_share
        peaks = "the defaults of the kind of device" if self.from_defaults else "the device's peaks"
        rest = f", {1 - share:.0%} estimated from {peaks}" if share < 1 else ""
        return f"{self.total:,.1f} us on {self.device}: {share:.0%} measured{rest}"

    def _lines(self) -> list[tuple[str, str, str, str, str, str]]:
        total = self.total or 1.0
        return [
            (operator, kernel, f"{calls}", f"{taken:,.1f}", f"{taken / total:.1%}", known)
            for (operator, kernel, known), (calls, taken) in self.by_operator().items()
        ]

    def __str__(self) -> str:
        lines = [self._title()]
        for operator, kernel, calls, taken, share, known in self._lines():
            name = f"{operator:32s} {kernel:16s}"
            lines.append(f"  {name} {calls:>5s} {taken:>12s} {share:>7s}  {known}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = ("operator", "kernel", "calls", "us", "share", "")
        shown = table(head, self._lines(), numbers=(2, 3, 4), code=(0, 1))
        return fragment(tag("div", self._title(), class_="title"), shown)


def cost(module: Module, device: object = None, how: str | None = None) -> CostReport:
    """Predict the time of one call of a typed module's main, at any stage of compilation.

    device: where it runs, by default on the CPU. how: as its calls are run, "graph" (within CUDA
    graphs) or "eager"; by default as `meta.vm.compile` has it there. Of a compiled program it is
    ``cost(run.module, run.device)``.

    A kernel that was measured counts as its median, one of nearly the same extents as well. What
    was not is estimated from its work and the peaks of the device (`meta.vm.measure_peaks`); the
    report says how much of the time that is. Nothing is measured here. A call of a function counts
    as what the function does, an `If` as its longer block, and a function that calls itself once.
    Of a program that is not dispatched yet, each call counts as the kernel that is chosen for it.

    Raises DeviceError for a device that is not there.

    >>> program = meta.model.Linear(3, 2).forward.program(meta.ones((4, 3)))
    >>> meta.analysis.cost(program.module).total > 0
    True
    """
    where = require("cpu" if device is None else device)
    predictor = Predictor(module, where, how)

    def names(binding: Binding) -> tuple[str, str]:
        launch = predictor.launch(binding)
        found = (callee_name(binding.value), "")
        return found if launch is None else (launch.operator, launch.kernel)

    rows = [
        CostRow(number, *names(binding), time, binding.span)
        for number, binding in enumerate(module.main.body.bindings)
        if (time := predictor.binding(binding)) != NO_TIME
    ]
    return CostReport(tuple(rows), where, predictor.how, not predictor.peaks.measured)
