"""Per-call overhead of `meta` beside PyTorch: a 4x4 float32 add, eager, as one VM instruction, and,
on CUDA, as a kernel of Triton; PyTorch's own functions inside of `meta.interop.torch.enable` and
after it; in one run.

    python benchmarks/overhead.py [--device cpu] [--json] [--check]

An eager call is timed with its result's allocation, as torch's is. A VM instruction is the
difference between programs of 201 and 1 chained additions, divided by 200; on CUDA they are not
recorded as graphs. The launch of a Triton kernel is that of `meta` on its machine code, without
the eager call around it, and Triton's own for comparison. The contenders take turns, short ones, so
that other programs miss some; figures are the minimum over the turns, in microseconds. On CUDA they
are host time, the device being waited for at the end of each turn.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from math import inf
from typing import Any

import torch
from command import add_outputs, parser_of

import meta
import meta.interop.torch

LAUNCH_GOAL = 3.0
"""Microseconds of host time that the launch of a Triton kernel takes at most."""
GOALS = {
    "cpu": {"eager call": 1.5, "VM instruction": 1.0},
    "cuda": {"eager call": 1.0, "VM instruction": 1.0},
}
"""At most this many times torch's eager call, by kind of device."""
ADDED = {"on": 4.0, "off again": 0.1}
"""At most this many microseconds more than before it was enabled, of PyTorch's functions."""


def turn(call: Callable[[], Any], number: int, device: str) -> float:
    """Return the microseconds of one of ``number`` calls."""
    for _ in range(number // 10 + 1):
        call()
    start = time.perf_counter()
    for _ in range(number):
        call()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / number * 1e6


def microseconds(
    calls: dict[str, tuple[Callable[[], Any], int]], device: str, repeat: int = 300
) -> dict[str, float]:
    """Return the least time of one of each call; beside it stands how many make a turn."""
    turns = [
        {name: turn(call, number, device) for name, (call, number) in calls.items()}
        for _ in range(repeat + 1)
    ]
    return {name: min(one[name] for one in turns[1:]) for name in calls}


def chain(length: int) -> Any:
    """Return a traced function of ``length`` additions."""

    @meta.model.trace
    def run(a: Any, b: Any) -> Any:
        for _ in range(length):
            a = meta.add(a, b)
        return a

    return run


def torch_calls(device: str) -> dict[str, Callable[[], Any]]:
    """Return calls of PyTorch's functions: of one tensor, two and three, and with a number."""
    x, y, bias = (torch.randn(n, device=device) for n in ((4, 4), (4, 4), (4,)))
    weight = torch.nn.Parameter(torch.randn(4, 4, device=device))
    return {
        "torch.add(x, y)": lambda: torch.add(x, y),
        "torch.add(x, w)": lambda: torch.add(x, weight),
        "torch.softmax(x, -1)": lambda: torch.softmax(x, -1),
        "torch.relu(x)": lambda: torch.relu(x),
        "x * 2.0": lambda: x * 2.0,
        "linear(x, y, b)": lambda: torch.nn.functional.linear(x, y, bias),
    }


def enabled(device: str, repeat: int = 100) -> dict[str, dict[str, float]]:
    """Return the microseconds of PyTorch's functions "off", "on" and "off again", by function."""
    calls = torch_calls(device)
    blocks: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "off": nullcontext,
        "on": lambda: meta.interop.torch.enable(device=device),
        "off again": nullcontext,
    }
    found: dict[str, dict[str, float]] = {name: dict.fromkeys(blocks, inf) for name in calls}
    for _ in range(repeat):
        for state, block in blocks.items():
            with block():
                for name, call in calls.items():
                    found[name][state] = min(found[name][state], turn(call, 100, device))
    return found


def triton_launches(a: torch.Tensor, b: torch.Tensor) -> dict[str, tuple[Callable[[], Any], int]]:
    """Return an addition as a kernel of Triton, launched by `meta` and by Triton itself."""
    import triton
    import triton.language as tl

    from meta.base.device import Device
    from meta.dialect.triton.sequence import TritonLaunch

    @triton.jit
    def add(x, y, out, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n)
        tl.store(out + at, value, mask=at < n)

    out, device = torch.empty_like(a), Device(str(a.device))
    types = dict.fromkeys(("x", "y", "out"), "float32")
    ours = TritonLaunch(add, device, (1,), **types, n=a.numel(), BLOCK=32, num_warps=1)
    return {
        "launch of a Triton kernel": (lambda: ours(a, b, out), 200),
        "the same by Triton": (
            lambda: add[(1,)](a, b, out, a.numel(), BLOCK=32, num_warps=1), 200
        ),
    }  # fmt: skip


def measure(device: str) -> dict[str, float]:
    """Return the figures by name, in microseconds."""
    ta, tb = torch.randn(4, 4, device=device), torch.randn(4, 4, device=device)
    a, b = meta.array(ta, device=device), meta.array(tb, device=device)
    with meta.PassContext(disabled=["fuse_operators"]):  # else the additions are a few kernels
        short, long = (meta.vm.compile(chain(n), a, b, cuda_graph=False) for n in (1, 201))
    more = triton_launches(ta, tb) if device == "cuda" and find_spec("triton") else {}
    found = microseconds(
        {
            "torch eager call": (lambda: torch.add(ta, tb), 200),
            "eager call": (lambda: meta.add(a, b), 200),
            "VM call of one instruction": (lambda: short(a, b), 200),
            "of 201": (lambda: long(a, b), 5),
            **more,
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
    figures, calls = measure(options.device), enabled(options.device)
    base, goals = figures["torch eager call"], GOALS[options.device]
    missed = any(figures[name] > goal * base for name, goal in goals.items())
    missed = missed or figures.get("launch of a Triton kernel", 0.0) > LAUNCH_GOAL
    missed |= any(
        call[s] > call["off"] + goal for call in calls.values() for s, goal in ADDED.items()
    )
    if options.json:
        shown = {"device": options.device, "microseconds": figures, "enabled": calls}
        print(json.dumps(shown))
        return int(options.check and missed)
    print(f"4x4 float32 add on {options.device}, microseconds (torch {torch.__version__})")
    for name, value in figures.items():
        goal = f"  goal <= {goals[name]:g}x" if name in goals else ""
        goal = f"  goal <= {LAUNCH_GOAL:g} us" if name == "launch of a Triton kernel" else goal
        print(f"  {name:28s} {value:7.2f}  {value / base:5.2f}x torch{goal}")
    print("torch's functions with meta.interop.torch.enable, microseconds")
    for name, call in calls.items():
        times = "  ".join(f"{state} {value:6.2f}" for state, value in call.items())
        print(f"  {name:28s} {times}  goal on <= +{ADDED['on']:g}")
    return int(options.check and missed)


if __name__ == "__main__":
    sys.exit(main())
