"""How soon a fresh process is ready: imports, the first operator, calls that were not made before.

    python benchmarks/startup.py [--processes 5] [--json] [--check]

Each figure is the median over processes of their own, one after the other, with warm disk caches
and compiled bytecode, as an installed package has it; a first one, which writes both, is not
counted. *import of torch* comes first in a process, *import of meta* after it:
what `meta` adds. *new shape*: an addition of arrays of a shape not met before, the median over 300
of them. *new integer*: ``x[i]`` with another ``i`` each time. *--help* is the whole process
``python -m meta --help``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from command import add_outputs, parser_of
from worker_processes import records_of

CALLS = 300
GOALS = {
    "import of meta, s": ("", 0.5),
    "first operator, ms": ("", 50.0),
    "new shape, us": ("new shape of torch, us", 5.0),
    "new integer, us": ("new integer of torch, us", 5.0),
    "--help, s": ("", 0.3),
}
"""At most this value, or so many times the other figure that is named."""


def median_us(call: Callable[[int], Any]) -> float:
    """Return the median time of the calls, each with another number, in microseconds."""
    times = []
    for i in range(CALLS):
        start = time.perf_counter()
        call(i)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def worker() -> dict[str, float]:
    """Return the figures of this process."""
    start = time.perf_counter()
    import torch

    with_torch = time.perf_counter()
    import meta

    found = {
        "import of torch, s": with_torch - start,
        "import of meta, s": time.perf_counter() - with_torch,
    }
    torch.set_num_threads(1)
    x = meta.array([[1.0, 2.0], [3.0, 4.0]])
    start = time.perf_counter()
    meta.add(x, x)
    found["first operator, ms"] = (time.perf_counter() - start) * 1e3
    tensors = [torch.ones(i + 1, 3) for i in range(CALLS)]
    arrays = [meta.array(t) for t in tensors]
    found["new shape of torch, us"] = median_us(lambda i: torch.add(tensors[i], tensors[i]))
    found["new shape, us"] = median_us(lambda i: meta.add(arrays[i], arrays[i]))
    rows = torch.ones(CALLS, 8)
    array = meta.array(rows)
    found["new integer of torch, us"] = median_us(lambda i: rows[i])
    found["new integer, us"] = median_us(lambda i: array[i])
    return found


def measure(processes: int) -> dict[str, float]:
    """Return the median figures of so many processes."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [process_figures(folder) for _ in range(processes + 1)]
    return {name: statistics.median(run[name] for run in runs[1:]) for name in runs[0]}


def process_figures(folder: str) -> dict[str, float]:
    """Return the figures of one process, and how long another takes for ``--help``."""
    bytecode = {"PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": ""}
    (found,) = records_of(folder, __file__, "--worker", **bytecode)
    start = time.perf_counter()
    list(records_of(folder, "-m", "meta", "--help", **bytecode))
    return {**found, "--help, s": time.perf_counter() - start}


def main() -> int:
    """Print the figures; return 1 if ``--check`` finds a goal missed."""
    parser = parser_of(__doc__)
    parser.add_argument("--processes", type=int, default=5, help="default 5")
    add_outputs(parser, page=False)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(worker()))
        return 0
    figures = measure(options.processes)
    limits = {name: (figures[of] if of else 1.0) * most for name, (of, most) in GOALS.items()}
    missed = [name for name, limit in limits.items() if figures[name] > limit]
    if options.json:
        print(json.dumps({"figures": figures, "limits": limits, "missed": missed}))
        return int(options.check and bool(missed))
    for name, value in figures.items():
        goal = f"  goal <= {limits[name]:.2f}" if name in limits else ""
        print(f"  {name:26s} {value:8.2f}{goal}{'  missed' if name in missed else ''}")
    return int(options.check and bool(missed))


if __name__ == "__main__":
    sys.exit(main())
