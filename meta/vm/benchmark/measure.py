"""`meta.measure`: what a call costs on each backend; also what dispatch asks with META_TUNE=on."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from meta.base.call_context import set_default_chooser
from meta.base.device import BUILT_IN, Device, require
from meta.base.errors import ArgumentError, DeviceError, OutOfMemory
from meta.base.html import Html, bytes_text, fragment, table, tag
from meta.cost.chooser import CostChooser, chooser
from meta.cost.record import Cost, Timing
from meta.dialect.core import DIALECTS, DialectOp
from meta.ir import Function
from meta.op.core import CallValues, Op, View
from meta.runtime.out_of_memory import free_bytes
from meta.vm.benchmark.benchmark import MOST_CONFIGS, Rules, benchmark, benchmarks
from meta.vm.benchmark.interleave import Clock
from meta.vm.benchmark.workload import Workload, call_workload, function_workload
from meta.vm.eager.example_calls import ExampleCall, example_calls

HOW = ("graph", "eager")
TUNING_PATIENCE = 1.0
"""Seconds of rounds of one race of many: what is not known to 1 % by then differs by less."""


HEAD = ("", "forward us", "spread", "gradient us", "host us", "compile ms", "workspace")


class Costs(list[Cost]):
    """The costs of the contenders of one call, in the order in which dispatch asks them.

    Attributes
    ----------
    title: the call with its types.
    """

    def __init__(self, title: str, costs: Iterable[Cost] = ()) -> None:
        super().__init__(costs)
        self.title = title

    def records(self) -> list[dict[str, Any]]:
        """Return one record per contender, as values that JSON has."""
        return [cost.record() for cost in self]

    def __str__(self) -> str:
        if not self:
            return f"{self.title}\n    no kernel runs"
        rows = [HEAD, *map(_row, self)]
        widths = [max(len(row[i]) for row in rows if len(row) > 2) for i in range(len(HEAD))]
        widths[0] = max(len(row[0]) for row in rows)
        lines = [self.title]
        for row in rows:
            cells = [row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]
            lines.append("    " + "  ".join(cells if len(row) > 2 else (cells[0], row[1])).rstrip())
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = [(*row, *[""] * (len(HEAD) - len(row))) for row in map(_row, self)]
        numbers = tuple(range(1, len(HEAD)))
        found: Html | str = table(HEAD, rows, numbers=numbers) if rows else "no kernel runs"
        return fragment(tag("div", self.title, class_="code"), found)


def _row(cost: Cost) -> tuple[str, ...]:
    """Return the cells of a contender; of one that was refused its name and the reason."""
    if cost.refused:
        return cost.name, f"refused: {cost.refused}"
    return (
        cost.name,
        *_timing(cost.forward),
        _timing(cost.backward)[0],
        _number(cost.host),
        _number(cost.compile),
        bytes_text(cost.bytes.get("workspace", 0)),
    )


def _timing(timing: Timing | None) -> tuple[str, str]:
    if timing is None:
        return "", ""
    return _number(timing.median), f"{timing.p20:.2f} to {timing.p80:.2f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def measure(
    op: Op | DialectOp | Callable[..., Any],
    *args: Any,
    device: object = None,
    dialect: str | None = None,
    how: str = "graph",
    backward: bool = False,
    budget: float | None = None,
    iters: int | None = None,
    configs: int = MOST_CONFIGS,
    clock: Clock | None = None,
    **kwargs: Any,
) -> Costs:
    """Time an operator on every backend that has it, and in every configuration of its kernel.

    Parameters
    ----------
    op: an operator, or one of a dialect (``meta.op.tvm.softmax``), whose kernels alone are timed.
    args, kwargs: the arguments of the call. A `TensorType` stands for an array, which is then made:
        floats are random, integers in range where they index. Arrays that are given are used with
        their values, in compact form: for an operator that does not take just any.
    device: where to run; by default where the arrays are, or on the CPU.
    dialect: the name of the one whose kernels are timed; None: all.
    how: on CUDA, "graph": as in a compiled program. The kernels are replayed as one CUDA graph, and
        what cannot be recorded is launched by the host; a kernel that fills its result finds its
        memory there. "eager": as a call of the user, launched by the host, its result allocated.
        On the CPU the host calls the kernel either way, as a compiled program does; with "eager",
        kernels that need no compiling come first.
    backward: whether the program of the gradient is timed as well, of all that the gradient rule
        calls, on the same dialect where it has these operators.
    budget: seconds, after which no contender is made and no round begins; the first contender is
        made in any case, and timed at least once. None: until the times are known to 1 %.
    iters: how many rounds; 0: each contender runs once, is checked and not timed. None: as many as
        are needed.
    configs: how many configurations of one kernel are timed besides its default.
    clock: what takes the time, for tests.

    Result: a list, which prints as a table, of one `Cost` for each contender, in the order in which
    dispatch asks, as `meta.explain` has them: microseconds forward and backward (median, 20th and
    80th percentile over the rounds), host microseconds of a launch (on the CPU the kernel's time),
    milliseconds of making the kernel, bytes, or why it was refused. It is empty for a call that
    needs no kernel, such as a view.

    The results of each contender are compared with those of the first one that runs, within the
    tolerance of the dtype; one that is wrong is refused, and so is one that raises an error. What
    is random is compared by type and shape alone. Rounds time one batch of calls of every contender
    in turn. How the memory of arguments is taken in turn, so that it is not in a cache, is in
    `meta/vm/benchmark/workload.py`. Nothing is kept: neither the result nor any memory.

    Raises what the call itself would raise for wrong arguments, ArgumentError for a function that
    makes several operator calls, for extents that are not numbers, and for values of ``how``,
    ``budget`` and ``iters`` that mean nothing; UnknownName for a dialect that does not exist;
    OutOfMemory if there is no room for the arguments and results.

    >>> import meta
    >>> costs = meta.measure(meta.tanh, meta.ir.parse_type("float32[64, 64]"), dialect="torch")
    >>> [(cost.dialect, cost.refused, cost.bytes["outputs"]) for cost in costs]
    [('torch', '', 16384)]
    """
    if isinstance(op, DialectOp):
        own = op.dialect.name
        if dialect not in (None, own):
            raise ArgumentError(
                "measure is given an operator of one dialect and the name of another",
                op=op.name,
                found=repr(dialect),
            )
        op, dialect = op.base, own
    if dialect is not None:
        DIALECTS[dialect]
    _require_sound(how, budget, iters, configs)
    where = None if device is None else require(device)
    if isinstance(op, Op) and where is not None and "device" in op.schema.index:
        kwargs.setdefault("device", str(where))
    found = _single(op, example_calls("measure", op, args, kwargs, where))
    if found is None:
        return Costs(getattr(op, "__name__", "a function"))
    workload = call_workload(found)
    if workload.device.kind not in BUILT_IN:
        raise DeviceError(
            "measure has no clock for the device",
            expected=" or ".join(BUILT_IN),
            found=workload.device,
        )
    rules = Rules(how, dialect, backward, budget, iters, configs, clock=clock)
    return Costs(workload.title, benchmark(workload, rules))


def _require_sound(how: str, budget: float | None, iters: int | None, configs: int) -> None:
    wrong = None
    if how not in HOW:
        wrong = f"how={how!r}", " or ".join(map(repr, HOW))
    elif budget is not None and not budget >= 0:
        wrong = f"budget={budget!r}", "seconds, 0 or more"
    elif (iters is not None and iters < 0) or configs < 0:
        wrong = f"iters={iters!r}, configs={configs!r}", "numbers from 0 on"
    if wrong is not None:
        raise ArgumentError("measure cannot do that", found=wrong[0], expected=wrong[1])


def _single(op: Any, calls: list[ExampleCall]) -> ExampleCall | None:
    """Return the one call that needs a kernel, None if there is none; ArgumentError for several."""
    needy = [c for c in calls if c.call.callee is not None and not isinstance(c.call.out, View)]
    if len(needy) > 1:
        raise ArgumentError(
            "measure times one operator, and this makes several calls",
            op=getattr(op, "__name__", None),
            found=", ".join(c.call.op.name for c in needy),
            hint="measure them one by one; meta.explain has them with their arguments",
        )
    return needy[0] if needy else None


def measure_together(
    what: Sequence[CallValues | Function], device: Device, how: str
) -> Iterator[tuple[int, list[Cost]]]:
    """Iterate over the costs of calls and fused functions, each with its place among them, until
    the time is up, as a `meta.cost.chooser.Measurer`. There are none of one that has no room to be
    measured beside the user's arrays.
    """
    waiting = dict(enumerate(what))
    if device.kind == "cpu":
        # One race decides for programs and for eager calls. It begins with the kernel that priority
        # chooses in a program, which others have to beat, and not with one that is there already.
        how = "graph"
    while waiting:
        window = _window(waiting, device)
        rules = [
            Rules(
                how,
                left_out=_far_behind(workload.name, device),
                configs=MOST_CONFIGS,
                compiled=FEW_CONFIGS,
                breadth=chooser().breadth,
                near=NEAR,
                far=FAR,
            )
            for workload in window.values()
        ]
        found = benchmarks(list(zip(window.values(), rules, strict=True)))
        for (place, workload), costs in zip(window.items(), found, strict=True):
            if isinstance(costs, OutOfMemory):
                yield place, []
            else:
                _note(workload.name, device, costs)
                yield place, costs
        if chooser().remaining() <= 0:
            return


def _window(waiting: dict[int, CallValues | Function], device: Device) -> dict[int, Workload]:
    """Take what is measured side by side, from the front: what may be begun with the time that is
    left, has room beside one another, and has no more calls of an operator than are needed to
    learn who is far behind in it. The others of that operator wait.
    """
    room = MOST_BYTES[device.kind]
    free = free_bytes(device)
    room = room if free is None else min(room, free // 8)
    most = max(1, int(min(chooser().remaining(), WINDOW)))
    found: dict[int, Workload] = {}
    counts: Counter[str] = Counter()
    for place, what in list(waiting.items()):
        if isinstance(what, Function):
            workload = function_workload(what, device)
        else:
            if counts[what.op.name] >= ENOUGH and not _is_decided(what.op.name, device):
                continue
            counts[what.op.name] += 1
            workload = call_workload(ExampleCall(what, tuple(what.args)))
        room -= sum(workload.bytes.values())
        if found and room < 0:
            break
        found[place] = workload
        del waiting[place]
        if len(found) == most:
            break
    return found


def _is_decided(name: str, device: Device) -> bool:
    """Whether it is known of all dialects whether they are far behind in an operator."""
    counts = [n for (op, _, where), n in _hopeless.items() if (op, where) == (name, device)]
    return bool(counts) and not any(0 < count < ENOUGH for count in counts)


def _far_behind(name: str, device: Device) -> dict[str, str]:
    """Return why dialects take no part in races of an operator, by their name."""
    return {
        dialect: f"was {FAR_BEHIND:g} times as slow in {count} races of {name}, and never close"
        for (op, dialect, where), count in _hopeless.items()
        if (op, where) == (name, device) and count >= ENOUGH
    }


def _note(name: str, device: Device, costs: Sequence[Cost]) -> None:
    """Count which dialects were far behind in a race, and take back who was not."""
    times: dict[str, float] = {}
    for cost in costs:
        if cost.forward is not None:
            times[cost.dialect] = min(times.get(cost.dialect, math.inf), cost.median)
    for dialect, time in times.items():
        place = name, dialect, device
        if time <= FAR_BEHIND * min(times.values()):
            _hopeless[place] = -ENOUGH  # it is always made from now on
        elif _hopeless.get(place, 0) >= 0:
            _hopeless[place] = _hopeless.get(place, 0) + 1


FEW_CONFIGS, NEAR, FAR = 8, 0.1, 1.3
"""How many configurations of a kernel are worth compiling where many calls are measured, how near a
kernel has to be to the bandwidth of a copy so that nothing else is tried, and how many times as
slow as another so that its configurations are not. They seldom gain more than a tenth.
"""
WINDOW = 32
"""Races that go on side by side at most. A race takes less than a second: no more begin than there
are seconds left.
"""
MOST_BYTES = {"cpu": 1 << 30, "cuda": 8 << 30}
"""Bytes of the arguments and results of all of them, unless one takes more; nor do they take more
than an eighth of what is free.
"""
FAR_BEHIND, ENOUGH = 3.0, 2
"""How many times as slow as the fastest a dialect has to be, and in how many races of an operator,
to be left out of the others of this process. Making its kernels takes most of the time of a race.
"""
_hopeless: dict[tuple[str, str, Device], int] = {}


set_default_chooser(CostChooser(measure_together))
