"""What compilation does to the training step of a transformer's encoder: kernel launches, memory
and time, before and after fusion and planning, beside torch eager.

    python benchmarks/compile_report.py [--layers 1] [--rounds 20] [--json] [--check]

A step is forward, backward and update by SGD with momentum of `models/encoder.py`. The programs:

*as traced*: each operator by itself, each result allocated. *planned*: as traced, results placed
in one arena. *fused*: neighbours in one kernel, too. *compiled*: what `meta.vm.compile` makes: also
reordered and written in place. *budget*: compiled with ``memory_budget`` of half of that peak, for
stacks of ``--budget-layers``.

Peaks do not count inputs, parameters and the optimizer's state, on either side. *planned* is what
the program takes by its plan, everything that is allocated per call included; *bound* is what is in
use at its worst moment, below which no plan can be. *measured* is the arena and the most that
torch's allocator had given out beside it during a call, by the memory events of torch.profiler; for
torch eager it is the whole step, gradients included, which are freed at its end. Memory that TVM's
kernels take for themselves is not seen by that.

The programs take turns. *ms* is the least time; what a budget costs is the median over the rounds
of the two programs' times in one round, so that other work on the machine is in both. Of one thread
it is the processor's time.

The goals, which ``--check`` holds: compiled, planned is at most 1.05 of bound, and measured less
than torch eager; under a budget, planned is within it, losses agree, and a step takes at most
1.25 of the time without one.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from command import add_outputs, parser_of
from models import Task, sgd_row
from models.contenders import program
from models.encoder import encoder
from report import conditions, plain
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile

import meta

BOUND_GOAL, BUDGET_SHARE, TIME_GOAL = 1.05, 0.5, 1.25
FUSION = ("fuse_dialect", "fuse_operators")
BETTER = ("memory_schedule", "inplace_update")
WITHOUT = {
    "as traced": (*FUSION, *BETTER, "plan_memory"),
    "planned": (*FUSION, *BETTER),
    "fused": BETTER,
    "compiled": (),
}
"""The passes that each program goes without."""


@dataclass
class Row:
    """One program: a call of it, and what is known of it."""

    name: str
    call: Callable[[], torch.Tensor]
    kernels: int | None = None
    planned: int | None = None
    bound: int | None = None
    measured: int = 0
    rounds: list[float] = field(default_factory=list)
    loss: float = 0.0

    @property
    def ms(self) -> float:
        """The least time of a call in milliseconds; ``rounds`` has that of each round."""
        return min(self.rounds, default=math.inf)

    def times(self, other: Row) -> float:
        """Return how many times another program's time this takes, in a usual round."""
        return median(a / b for a, b in zip(self.rounds, other.rounds, strict=True))

    def record(self) -> dict[str, Any]:
        """Return the row as values that JSON has."""
        return {**{n: v for n, v in vars(self).items() if n != "call"}, "ms": self.ms}


def ours(task: Task, name: str, budget: int | None = None) -> Row:
    """Return a program of `meta`."""
    row_of_task = sgd_row(lambda _: task, True)
    step, arguments = program(row_of_task, task, task.pair()[0], "cpu")
    with meta.PassContext(disabled=WITHOUT.get(name, ())):
        run = meta.vm.compile(step, *arguments, memory_budget=budget)
    memory = run.memory()
    row = Row(name, lambda: run(*arguments).torch(), sum(run.kernels().values()))
    row.planned, row.bound = memory.peak, memory.lower_bound
    row.loss = float(row.call())
    row.measured = memory.arena + allocated(row.call)
    return row


def theirs(task: Task) -> Row:
    """Return torch eager."""
    _, model = task.pair()
    x, labels = task.batch()
    how = sgd_row(lambda _: task, True)
    optimizer = torch.optim.SGD(model.parameters(), lr=how.rate, momentum=how.momentum)

    def call() -> torch.Tensor:
        loss = cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    row = Row("torch eager", call)
    row.loss = float(call())
    row.measured = allocated(call)
    return row


def allocated(call: Callable[[], Any]) -> int:
    """Return the most bytes that torch's allocator had given out at once during a call."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = call()
    del kept
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    total = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        total += event.nbytes()
        most = max(most, total)
    return most


def time_all(rows: list[Row], rounds: int) -> None:
    """Note the least time of each program in each round, the programs taking turns."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter

    def one(call: Callable[[], Any]) -> float:
        start = clock()
        call()
        return 1e3 * (clock() - start)

    for _ in range(rounds):
        for row in rows:
            row.call()  # its memory is in the caches again
            row.rounds.append(min(one(row.call) for _ in range(3)))


def measure(layers: int, rounds: int) -> list[Row]:
    """Return the rows of one encoder."""
    task = encoder(layers)
    rows = [*(ours(task, name) for name in WITHOUT), theirs(task)]
    time_all(rows, rounds)
    return rows


def with_budget(layers: int, rounds: int) -> list[Row]:
    """Return the rows of one encoder without and with a budget."""
    task = encoder(layers)
    free = ours(task, "compiled")
    assert free.planned is not None
    small = ours(task, "budget", int(BUDGET_SHARE * free.planned))
    rows = [free, small, theirs(task)]
    time_all(rows, rounds)
    return rows


def missed(rows: list[Row], limited: dict[int, list[Row]]) -> list[str]:
    """Return the goals that are missed; ``limited`` are the rows with a budget, by layers."""
    compiled, torchs = rows[-2], rows[-1]
    goals = {
        f"planned at most {BOUND_GOAL} of bound": compiled.planned <= BOUND_GOAL * compiled.bound,
        "measured less than torch eager": compiled.measured < torchs.measured,
        "equal losses": all(math.isclose(r.loss, rows[0].loss, rel_tol=1e-4) for r in rows),
    }
    for layers, (free, small, _) in limited.items():
        of = f"{layers} layers"
        goals |= {
            f"{of} planned within the budget": small.planned <= BUDGET_SHARE * free.planned,
            f"{of} with a budget at most {TIME_GOAL} of the time": small.times(free) <= TIME_GOAL,
            f"{of} equal losses": math.isclose(small.loss, free.loss, rel_tol=1e-5),
        }
    return [goal for goal, held in goals.items() if not held]


def table(rows: list[Row]) -> list[list[str]]:
    """Return rows as text, the head first."""

    def mega(count: int | None) -> str:
        return "" if count is None else f"{count / 1e6:.2f}"

    lines = [
        [
            r.name, "", "" if r.kernels is None else str(r.kernels), mega(r.planned), mega(r.bound),
            f"{r.planned / r.bound:.3f}" if r.planned and r.bound else "", mega(r.measured),
            f"{r.ms:.2f}",
        ]
        for r in rows
    ]  # fmt: skip
    units = ["planned, MB", "bound, MB", "to bound", "measured, MB", "ms"]
    return [["program", "", "kernels", *units], *lines]


def main() -> int:
    """Measure and print; return 1 if ``--check`` finds a goal missed."""
    parser = parser_of(__doc__)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--budget-layers", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=20)
    add_outputs(parser, page=False)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    os.environ["TVM_NUM_THREADS"] = str(options.threads)  # read when TVM first runs in parallel
    rows = measure(options.layers, options.rounds)
    limited = {n: with_budget(n, options.rounds) for n in options.budget_layers}
    where = conditions(True, f"least of {options.rounds} rounds")
    goals = missed(rows, limited)
    if options.json:
        report = {"conditions": where, "missed": goals}
        report["encoder"] = {"layers": options.layers, "rows": [r.record() for r in rows]}
        report["budget"] = [
            {"layers": n, "rows": [r.record() for r in few]} for n, few in limited.items()
        ]
        print(json.dumps(report))
    else:
        print(f"{where}\n\n{encoder(options.layers).what}\n{plain(table(rows))}\n")
        for layers, few in limited.items():
            print(f"{encoder(layers).what}\n{plain(table(few))}")
            print(f"budget: {few[1].planned / few[0].planned:.2f} of the peak, ", end="")
            print(f"{few[1].times(few[0]):.2f} of the time\n")
        print(f"Goals missed: {'; '.join(goals) or 'none'}")
    return int(options.check and bool(goals))


if __name__ == "__main__":
    sys.exit(main())
