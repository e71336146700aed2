"""Where a call's time goes on the device: kernels by name, and, of `meta`, instructions by kind."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from models.contenders import Call, Contender

STEPS, TOP, NAME = 3, 30, 110
KINDS = (
    ("copy or fill", r"memcpy|memset"),
    ("convolution", r"conv|fprop|dgrad|wgrad|implicit"),
    ("attention", r"fmha|flash|attention|sdpa|sdpf|pytorch_flash"),
    ("product", r"gemm|gemv|nvjet|cutlass|xmma|splitk|cublas"),
)
"""Kinds of library kernels by what their names have in common; what is left is elementwise code,
reductions and the like.
"""


def kind_of(name: str) -> str:
    """Return the kind of a kernel by its name.

    >>> kind_of("sm90_xmma_gemm_f16f16"), kind_of("add_kernel")
    ('product', 'other')
    """
    return next((kind for kind, part in KINDS if re.search(part, name.lower())), "other")


def profile(call: Call, contender: Contender) -> str:
    """Return tables of a few calls; they are run once more, so state goes on."""
    lines = device_table(call)
    if contender.executable is not None:
        assert contender.inputs is not None
        lines += instruction_table(contender.executable, contender.inputs)
    return "\n".join(lines)


def device_table(call: Call) -> list[str]:
    """Return the kernels of a call, the slowest first, after sums by kind."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(STEPS):
            call()
        torch.cuda.synchronize()
    spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    kinds: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    first, last = float("inf"), 0.0
    for event in found.events():
        if event.device_type != torch.autograd.DeviceType.CUDA:
            continue
        span = event.time_range
        first, last = min(first, span.start), max(last, span.end)
        for record in (spent[event.name], kinds[kind_of(event.name)]):
            record[0] += span.elapsed_us() / STEPS
            record[1] += 1 / STEPS
    total = sum(us for us, _ in spent.values())
    launches = sum(count for _, count in spent.values())
    lines = [
        f"kernels of a call: {launches:.0f} launches, {total:.0f} us busy of "
        f"{(last - first) / STEPS:.0f} us"
    ]
    lines += _lines(kinds, total)
    lines += ["by kernel:", *_lines(spent, total)]
    return lines


def instruction_table(executable: Any, inputs: tuple[Any, ...]) -> list[str]:
    """Return the instructions of a program by operator and types, the slowest first. Each is timed
    between events of its own, which adds microseconds to the small ones.
    """
    measured = executable.profile(*inputs, repeat=STEPS, warmup=1)
    spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    dialects: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in measured.rows:
        name = ".".join(filter(None, (row.site.dialect, row.site.operator)))
        types = ", ".join(str(t) for t in (*row.inputs[:3], "->", *row.outputs[:2]))
        for record in (spent[f"{name} {types}"], dialects[row.site.dialect or "none"]):
            record[0] += 1e6 * row.seconds
            record[1] += row.calls
    lines = [f"instructions: {len(measured.rows)}", *_lines(dialects, 1e6 * measured.seconds)]
    return [*lines, "by operator:", *_lines(spent, 1e6 * measured.seconds)]


def _lines(spent: dict[str, list[float]], total: float) -> list[str]:
    rows = sorted(spent.items(), key=lambda item: -item[1][0])
    lines = [
        f"{us:10.1f} us {us / max(total, 1e-9):6.1%} {count:6.0f}x  {name[:NAME]}"
        for name, (us, count) in rows[:TOP]
    ]
    return lines + ([f"... and {len(rows) - TOP} more"] if len(rows) > TOP else [])
