"""Per-call overhead of `meta` beside PyTorch: a 4x4 float32 add, eager and as one VM instruction,
in one run.

    python benchmarks/overhead.py [--device cpu] [--json] [--check]

An eager call is timed with its result's allocation, as torch's is. A VM instruction is the
difference between programs of 201 and 1 chained additions, divided by 200; on CUDA they are not
recorded as graphs. The contenders take turns; figures are the minimum over the turns, in
microseconds. On CUDA they are host time, the device being waited for at the end of each turn.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from command import add_outputs, parser_of

import meta

GOALS = {
    "cpu": {"eager call": 1.5, "VM instruction": 1.0},
    "cuda": {"eager call": 1.0, "VM instruction": 1.0},
}
"""At most this many times torch's eager call, by kind of device."""


def microseconds(
    calls: dict[str, tuple[Callable[[], Any], int]], device: str, repeat: int = 30
) -> dict[str, float]:
    """Return the least time of one of each call; beside it stands how many make a turn."""

    def turn(call: Callable[[], Any], number: int) -> float:
        start = time.perf_counter()
        for _ in range(number):
            call()
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / number * 1e6

    turns = [{name: turn(*call) for name, call in calls.items()} for _ in range(repeat + 1)]
    return {name: min(one[name] for one in turns[1:]) for name in calls}


def chain(length: int) -> Any:
    """Return a traced function of ``length`` additions."""

    @meta.model.trace
    def run(a: Any, b: Any) -> Any:
        for _ in range(length):
            a = meta.add(a, b)
        return a

    return run


def measure(device: str) -> dict[str, float]:
    """Return the figures by name, in microseconds."""
    ta, tb = torch.randn(4, 4, device=device), torch.randn(4, 4, device=device)
    a, b = meta.array(ta, device=device), meta.array(tb, device=device)
    with meta.PassContext(disabled=["fuse_operators"]):  # else the additions are a few kernels
        short, long = (meta.vm.compile(chain(n), a, b, cuda_graph=False) for n in (1, 201))
    found = microseconds(
        {
            "torch eager call": (lambda: torch.add(ta, tb), 2000),
            "eager call": (lambda: meta.add(a, b), 2000),
            "VM call of one instruction": (lambda: short(a, b), 2000),
            "of 201": (lambda: long(a, b), 50),
        },
        device,
    )
    found["VM instruction"] = (found.pop("of 201") - found["VM call of one instruction"]) / 200
    return found


def main() -> int:
    """Print the table; return 1 if ``--check`` finds a goal missed."""
    parser = parser_of(__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="default cpu")
    add_outputs(parser, page=False)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA device")
    torch.set_num_threads(1)
    figures = measure(options.device)
    base, goals = figures["torch eager call"], GOALS[options.device]
    missed = any(figures[name] > goal * base for name, goal in goals.items())
    if options.json:
        print(json.dumps({"device": options.device, "microseconds": figures}))
        return int(options.check and missed)
    print(f"4x4 float32 add on {options.device}, microseconds (torch {torch.__version__})")
    for name, value in figures.items():
        goal = f"  goal <= {goals[name]:g}x" if name in goals else ""
        print(f"  {name:28s} {value:7.2f}  {value / base:5.2f}x torch{goal}")
    return int(options.check and missed)


if __name__ == "__main__":
    sys.exit(main())
