"""What goes wrong among ranks: run by test_faults.py, ``python -m tests.distributed.faults FOLDER
NAMES [DEVICE]``. Prints a report as JSON: by the fault's name, what became of each rank. On "cuda"
each has two ranks.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import meta
from meta import distributed as dist
from meta.base.errors import DistributedError
from meta.runtime.mesh import current_mesh
from tests.distributed.forked import start

DEVICE = sys.argv[3] if len(sys.argv) > 3 and sys.argv[0].endswith("faults.py") else "cpu"
LIMIT = 3.0 if DEVICE == "cpu" else 12.0
"""Seconds that a rank waits for others; NCCL takes some of them to connect GPUs."""


def ones(count: int) -> Any:
    """Return so many ones on the device."""
    return meta.ones((count,), device=DEVICE)


def program(function: Callable[[Any], Any]) -> Any:
    """Return a compiled program: the mean of a function's results along all axes."""

    @meta.model.trace
    def traced(x: Any) -> Any:
        y = function(x)
        for axis in current_mesh().groups:
            y = dist.all_reduce(y, axis, "mean")
        return y

    return meta.vm.compile(traced, ones(4))


def raises(rank: int) -> None:
    """The last rank raises in the user's code."""
    run = program(meta.tanh)
    if rank == dist.size("dp") - 1:
        raise ZeroDivisionError("mine")
    run(ones(4))


def is_late(rank: int) -> None:
    """One rank of two takes long; the other one gives up, and its error is known to both."""
    x = dist.all_reduce(ones(4), "dp")
    if rank:
        time.sleep(LIMIT + 1)
    try:
        dist.all_reduce(x, "dp")
    except DistributedError as error:
        began = time.monotonic()
        try:
            dist.all_reduce(x, "dp")
        except DistributedError as again:
            assert again.found == error.found and time.monotonic() - began < LIMIT / 2
        raise


def is_killed(rank: int) -> None:
    """One rank of four is killed, in the middle of its steps."""
    x = ones(4)
    for step in range(20):
        if rank == 1 and step == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        x = dist.all_reduce(x, "dp", "mean")


def keeper_is_killed(rank: int) -> None:
    """The rank that keeps the store is killed."""
    x = dist.all_reduce(ones(4), "dp")
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(x, "dp")


def leaves(rank: int) -> None:
    """One rank of two comes to the end of its program before the other one."""
    if rank == 0:
        dist.all_reduce(ones(4), "dp")


def other_shapes(rank: int) -> None:
    """Eager calls that differ: an error on all ranks each time, after which they go on together."""
    for call in (
        lambda: dist.all_reduce(ones(3 + rank), "dp"),
        lambda: dist.all_reduce(ones(3).astype(("float32", "float64")[rank]), "dp"),
        lambda: dist.all_reduce(ones(3), "dp", ("sum", "max")[rank]),
        lambda: dist.broadcast(ones(3), "dp", rank),
        lambda: (dist.all_gather, dist.all_reduce)[rank](ones(3), "dp"),
    ):
        try:
            call()
        except DistributedError as error:
            print(f"told: {error}")
    print("after:", dist.all_reduce(ones(3), "dp").numpy().tolist())


def other_programs(rank: int) -> None:
    """Compiled programs that differ, in what they compute and in a constant, on a mesh of two axes;
    and equal ones that are called in another order.
    """
    last = dist.size("dp") * dist.size("tp") - 1
    number = meta.array([1.0, 2.0, 3.0, 4.0 + (rank == last)], device=DEVICE)
    for make in (
        lambda: program(meta.exp if rank == 1 else meta.tanh),
        lambda: program(lambda x: x * number),
    ):
        try:
            make()
            print("not told")
        except DistributedError as error:
            print(f"told: {error}")
    both = [program(meta.exp), program(meta.tanh)]
    try:
        if DEVICE == "cpu":  # on CUDA nothing is compared when a program is called
            both[rank >= 2](ones(4))
            print("not told")
    except DistributedError as error:
        print(f"told: {error}")
    print("after:", both[0](0.0 * ones(4)).numpy().tolist())


def does_not_come(rank: int) -> None:
    """One rank never calls `init`."""


def other_mesh(rank: int) -> None:
    """The ranks make different meshes."""
    dist.Mesh({"dp": 2, "tp": 1} if rank else {"tp": 2, "dp": 1})


FAULTS: dict[str, tuple[Callable[[int], None], dict[str, int]]] = {
    "raises": (raises, {"dp": 3}),
    "is late": (is_late, {"dp": 2}),
    "is killed": (is_killed, {"dp": 4}),
    "keeper is killed": (keeper_is_killed, {"dp": 2}),
    "leaves": (leaves, {"dp": 2}),
    "other shapes": (other_shapes, {"dp": 2}),
    "other programs": (other_programs, {"dp": 2, "tp": 2}),
    "does not come": (does_not_come, {"dp": 3}),
    "other mesh": (other_mesh, {"dp": 2}),
}


WITH_EXIT = ("is late", "keeper is killed", "leaves")
"""Those in which the interpreter is ended, too."""


def rank_of(name: str) -> Callable[[int], None]:
    """Return what a rank does."""
    fault, sizes = FAULTS[name]
    sizes = sizes if DEVICE == "cpu" else {axis: 2 if axis == "dp" else 1 for axis in sizes}

    def main(rank: int) -> None:
        if name == "does not come" and rank == 1:
            time.sleep(LIMIT + 1)
            return
        began = time.monotonic()
        dist.init(DEVICE, timeout=LIMIT)
        with meta.dialect.only("torch", "gloo", "nccl"), dist.Mesh(sizes):
            dist.all_reduce(ones(1), "dp")
            began = time.monotonic()
            try:
                fault(rank)
            finally:
                print(f"\nit took {time.monotonic() - began:.3f} s")
        dist.end()
        if name == "other shapes":
            dist.init(DEVICE, timeout=LIMIT)
            with dist.Mesh(sizes):
                print("again:", dist.all_reduce(ones(1), "dp").numpy().tolist())
            dist.end()

    return main


def main(folder: Path, names: list[str]) -> None:
    """Print the report."""
    report = {}
    for name in names:
        ranks = math.prod(FAULTS[name][1].values()) if DEVICE == "cpu" else 2
        agent, whole_exit = name != "keeper is killed", name in WITH_EXIT
        report[name] = start(ranks, rank_of(name), folder / name, agent, whole_exit).wait()
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2].split(","))
