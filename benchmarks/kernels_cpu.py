"""Kernels of `meta` on the CPU beside torch eager and torch.compile, in one run.

    python benchmarks/kernels_cpu.py [--filter softmax] [--threads 2] [--dialect tvm] [--check]
    python benchmarks/kernels_cpu.py --markdown      # also replaces the table in
                                                     # docs/measurements.md

Each kernel of `kernel_list.py` is compiled by `meta.vm.compile` and run as the dispatcher decides;
where that is not the tvm dialect, generated code is timed as well. The contenders take turns of a
few milliseconds, so that what else happens on the machine happens to all; a figure is the least
time over all rounds. A turn begins with calls that are not timed, in which the threads of this
contender wake up and those of the one before, which wait for more work in a loop, fall asleep.
Inputs are allocated beforehand, results by each contender. Results are compared before
anything is timed.

The goal, which ``--check`` holds: the geometric mean of torch eager's time over ours is at least
1.2, and no kernel is slower than the better of the two torch times divided by 0.7, unless the
dispatcher runs torch there. Chains of operators count in the mean only.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from command import add_outputs, parser_of
from kernel_list import KERNELS, Kernel
from report import conditions, has_compiler, write
from turns import add_threads, in_turns, set_threads

import meta

MEAN_GOAL, LEAST = 1.2, 0.7
TURN_SECONDS = 0.006
BEGIN = "<!-- written by benchmarks/kernels_cpu.py --markdown -->"
TITLES = {"meta": "meta", "tvm": "generated", "eager": "torch eager", "compile": "torch.compile"}


def contenders(kernel: Kernel, dialect: str | None, compiler: bool) -> tuple[dict[str, Any], str]:
    """Return calls without arguments by name, and the dialects that the first of them runs."""
    calls: dict[str, Callable[[], Any]] = {}
    executable = _executable(kernel, dialect)
    ran = sorted({name.partition(".")[0] for name in executable.kernels()})
    calls["meta"] = _bound(executable, [meta.array(t) for t in inputs_of(kernel)])
    if dialect is None and ran != ["tvm"]:
        generated = _executable(kernel, "tvm")
        calls["tvm"] = _bound(generated, [meta.array(t) for t in inputs_of(kernel)])
    calls["eager"] = _bound(kernel.torch, inputs_of(kernel))
    if compiler:
        torch._dynamo.reset()
        compiled = torch.compile(kernel.compiled or kernel.torch, dynamic=False)
        calls["compile"] = _bound(compiled, inputs_of(kernel))
    return calls, " and ".join(ran)


def _executable(kernel: Kernel, dialect: str | None) -> Any:
    def traced(*args: Any) -> Any:
        return kernel.meta(*args)

    arrays = [meta.array(t) for t in inputs_of(kernel)]
    with meta.dialect.prefer(dialect) if dialect else nullcontext():
        return meta.vm.compile(meta.model.trace(traced), *arrays, device="cpu")


def inputs_of(kernel: Kernel) -> list[torch.Tensor]:
    return kernel.inputs(torch.Generator().manual_seed(0))


def _bound(function: Callable[..., Any], args: list[Any]) -> Callable[[], Any]:
    return lambda: function(*args)


def compare(kernel: Kernel, calls: dict[str, Any]) -> None:
    """Call each contender once; AssertionError if they do not agree."""
    results = {name: _tensor(call()) for name, call in calls.items()}
    for name, result in results.items():
        expected = results["eager"].to(torch.float64)
        torch.testing.assert_close(
            result.to(torch.float64), expected, rtol=1e-3, atol=1e-3,
            msg=lambda text, name=name: f"{kernel.name}, {name}: {text}",
        )  # fmt: skip


def _tensor(result: Any) -> torch.Tensor:
    return result if isinstance(result, torch.Tensor) else torch.from_dlpack(result)


def measure(
    kernels: list[Kernel], dialect: str | None, compiler: bool, rounds: int
) -> list[dict[str, Any]]:
    """Return one record per kernel: its name, the dialects that ran, times and ratios."""
    records = []
    for i, kernel in enumerate(kernels):
        if sys.stderr.isatty():
            print(f"\r{i + 1}/{len(kernels)} {kernel.name:40s}", end="", file=sys.stderr)
        calls, ran = contenders(kernel, dialect, compiler)
        compare(kernel, calls)
        times = in_turns(calls, rounds, TURN_SECONDS, min)
        best = min(times[name] for name in ("eager", "compile") if name in times)
        records.append(
            {
                "kernel": kernel.name,
                "chain": kernel.chain,
                "dialect": ran,
                "ms": times,
                "to_eager": times["eager"] / times["meta"],
                "to_best": best / times["meta"],
                "too_slow": _too_slow(kernel, ran, best / times["meta"]),
            }
        )
    if sys.stderr.isatty():
        print("\r" + " " * 60 + "\r", end="", file=sys.stderr)
    return records


def _too_slow(kernel: Kernel, ran: str, ratio: float) -> bool:
    return ratio < LEAST and ran != "torch" and not kernel.chain


def mean(records: list[dict[str, Any]], ratio: str) -> float:
    """Return the geometric mean of a ratio."""
    return math.exp(sum(math.log(r[ratio]) for r in records) / len(records))


def rows(records: list[dict[str, Any]]) -> list[list[str]]:
    """Return the table as text, the head first."""
    names = [name for name in TITLES if any(name in r["ms"] for r in records)]
    head = ["kernel", "runs on", *(f"{TITLES[n]}, ms" for n in names), "to eager", "to best"]
    lines = [
        [
            r["kernel"] + (" (chain)" if r["chain"] else ""),
            r["dialect"],
            *(f"{r['ms'][n]:.3f}" if n in r["ms"] else "" for n in names),
            f"{r['to_eager']:.2f}x",
            f"{r['to_best']:.2f}x" + (" !" if r["too_slow"] else ""),
        ]
        for r in records
    ]
    return [head, *lines]


def summary(records: list[dict[str, Any]]) -> list[str]:
    """Return the means, and what misses the goal."""
    lines = [
        f"Geometric mean of {len(records)} kernels: {mean(records, 'to_eager'):.2f}x torch eager "
        f"(goal {MEAN_GOAL}x), {mean(records, 'to_best'):.2f}x the better of torch eager and "
        "torch.compile."
    ]
    generated = [r for r in records if r["dialect"] == "tvm"]
    if generated and len(generated) < len(records):
        lines.append(
            f"Of the {len(generated)} that run generated code: {mean(generated, 'to_eager'):.2f}x "
            f"torch eager, {mean(generated, 'to_best'):.2f}x the better of the two."
        )
    slow = [r["kernel"] for r in records if r["too_slow"]]
    lines.append(
        f"Under {LEAST}x the better of the two and not given to torch (marked !): "
        + (", ".join(slow) or "none")
        + "."
    )
    return lines


def main() -> int:
    """Measure and print; return 1 if ``--check`` finds the goal missed."""
    parser = parser_of(__doc__)
    parser.add_argument("--filter", default="", help="only kernels whose name contains this")
    parser.add_argument("--dialect", help="prefer this dialect instead of the default")
    add_threads(parser, rounds=15)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    add_outputs(parser)
    options = parser.parse_args()
    kernels = [k for k in KERNELS if options.filter in k.name]
    if not kernels:
        parser.error(f"no kernel's name contains {options.filter!r}")
    if options.markdown and (len(kernels) < len(KERNELS) or options.dialect):
        parser.error("--markdown is for all kernels and the default dialects")
    set_threads(options.threads)
    compiler = not options.no_compile and has_compiler()
    with torch.no_grad():
        records = measure(kernels, options.dialect, compiler, options.rounds)
    where = conditions(compiler, f"least of {options.rounds} rounds")
    table, notes = rows(records), summary(records)
    figures = {"kernels": records, "summary": notes}
    write(options, where, figures, table, notes, BEGIN)
    missed = mean(records, "to_eager") < MEAN_GOAL or any(r["too_slow"] for r in records)
    return int(options.check and missed)


if __name__ == "__main__":
    sys.exit(main())
