"""Per-call overhead of `meta` beside PyTorch: a 4x4 float32 add, eager and as one VM instruction,
in one run.

    python benchmarks/overhead.py [--device cpu] [--json]

An eager call is timed with its result's allocation, as torch's is. A VM instruction is the
difference between programs of 201 and 1 chained additions, divided by 200. All figures are the
minimum over repeats, in microseconds; on CUDA they are host time, the device being waited for at
the end of each repeat.
"""

from __future__ import annotations

import argparse
import json
import timeit
from collections.abc import Callable
from typing import Any

import torch

import meta

GOALS = {"eager call": 4.0, "VM instruction": 1.0}  # at most this many times torch's eager call


def microseconds(
    call: Callable[[], Any], device: str, number: int = 5000, repeat: int = 30
) -> float:
    """Return the least time of one call."""

    def batch() -> None:
        for _ in range(number):
            call()
        if device == "cuda":
            torch.cuda.synchronize()

    batch()
    return min(timeit.repeat(batch, number=1, repeat=repeat)) / number * 1e6


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
    with meta.PassContext(disabled=["fuse_tvm"]):  # else the additions are a few kernels
        short, long = (meta.vm.compile(chain(n), a, b) for n in (1, 201))
    one = microseconds(lambda: short(a, b), device, number=2000)
    many = microseconds(lambda: long(a, b), device, number=100)
    add = meta.add
    return {
        "torch eager call": microseconds(lambda: torch.add(ta, tb), device),
        "eager call": microseconds(lambda: add(a, b), device),
        "VM instruction": (many - one) / 200,
        "VM call of one instruction": one,
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures = measure(options.device)
    base = figures["torch eager call"]
    if options.json:
        print(json.dumps({"device": options.device, "microseconds": figures}))
        return
    print(f"4x4 float32 add on {options.device}, microseconds (torch {torch.__version__})")
    for name, value in figures.items():
        goal = f"  goal <= {GOALS[name]:g}x" if name in GOALS else ""
        print(f"  {name:28s} {value:7.2f}  {value / base:5.2f}x torch{goal}")


if __name__ == "__main__":
    main()
