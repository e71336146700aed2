"""`torch.compile(model, backend="meta")` on the CPU beside Inductor and eager PyTorch, in one run.

    python benchmarks/dynamo_cpu.py [--models bert,resnet] [--modes infer,train] [--threads 2]
    python benchmarks/dynamo_cpu.py --freeze --modes infer  # weights are constants, for both
    python benchmarks/dynamo_cpu.py --json          # one JSON object
    python benchmarks/dynamo_cpu.py --check         # exit 1 if a goal is missed

Each record goes to stderr, as one JSON object, as soon as it is measured.

The models are in `models/dynamo_rows.py`: small transformers and convolutional networks. Inference
is in ``torch.no_grad()``; a training step is forward and backward. Results, losses and gradients
are compared with those of eager PyTorch before anything is timed.

The contenders take turns; a step is the median of all calls. *Compile* is the time of the first
call, less that of the backend "aot_eager_decomp_partition", which records and differentiates but
compiles nothing: each first call is in a process of its own, with empty caches on disk.

The goals, which ``--check`` holds: the geometric mean of Inductor's step times over those of
`meta`'s is 1 or more, and that of the compile times of `meta` over Inductor's 1/3 or less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from typing import Any

import torch
from command import add_names, add_outputs, parser_of
from models.dynamo_rows import ROWS, call_of
from report import conditions, has_compiler, write
from turns import add_threads, in_turns, set_threads
from worker_processes import records_of

import meta.frontend.dynamo  # noqa: F401  (registers the backend)

BACKENDS = {"meta": "meta", "inductor": "inductor", "trace": "aot_eager_decomp_partition"}
MODES = ("infer", "train")
LEAST_SPEED, MOST_COMPILE = 1.0, 1 / 3


def compiled(backend: str | None, freeze: bool = False) -> Any:
    """Return what compiles a model for a backend; None: nothing does."""
    if backend is None:
        return lambda model: model
    options: dict[str, Any] = {}
    if freeze and backend != "trace":
        options = {"freeze" if backend == "meta" else "freezing": True}
    return lambda model: torch.compile(model, backend=BACKENDS[backend], options=options or None)


def measure(name: str, mode: str, backends: list[str], options: Any) -> dict[str, float]:
    """Return the milliseconds of a step by contender, after their results were compared."""
    calls = {"eager": call_of(ROWS[name], mode, compiled(None))}
    for backend in backends:
        torch._dynamo.reset()
        calls[backend] = call_of(ROWS[name], mode, compiled(backend, options.freeze))
        for found, expected in zip(calls[backend](), calls["eager"](), strict=True):
            largest = max(expected.abs().max().item(), 1e-3)
            wanted = expected.expand_as(found)
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-3 * largest)
    return in_turns(calls, options.rounds)


def first_call(name: str, mode: str, backend: str, freeze: str, threads: str) -> dict[str, float]:
    """Return the seconds of a first call, in this process."""
    torch.set_num_threads(int(threads))
    call = call_of(ROWS[name], mode, compiled(backend, freeze == "freeze"))
    start = time.perf_counter()
    call()
    return {"seconds": time.perf_counter() - start}


def first_call_apart(*given: str) -> float:
    """Return the seconds of a first call, in a process of its own with empty caches."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = (__file__, "--first-call", *given)
        (found,) = records_of(folder, *arguments, TVM_NUM_THREADS=given[-1])
    return float(found["seconds"])


def record(name: str, mode: str, backends: list[str], options: Any) -> dict[str, Any]:
    """Return everything about one model in one mode."""
    found: dict[str, Any] = {"model": name, "mode": mode}
    found["ms"] = measure(name, mode, backends, options)
    if not options.no_first_call:
        how = "freeze" if options.freeze else "plain", str(options.threads)
        first = {
            backend: first_call_apart(name, mode, backend, *how) for backend in (*backends, "trace")
        }
        found["first"] = first
        found["compile"] = {b: max(first[b] - first["trace"], 1e-3) for b in backends}
    return found


def geometric_mean(values: list[float]) -> float:
    """Return the geometric mean, 1 of nothing."""
    return statistics.geometric_mean(values) if values else 1.0


def summary(records: list[dict[str, Any]]) -> dict[str, float]:
    """Return the geometric means: speed by mode and of all, and the share of compile time."""
    both = [r for r in records if "inductor" in r["ms"]]
    speeds = {
        mode: [r["ms"]["inductor"] / r["ms"]["meta"] for r in both if r["mode"] == mode]
        for mode in MODES
    }
    compiles = [r["compile"]["meta"] / r["compile"]["inductor"] for r in both if "compile" in r]
    found = {f"speed {mode}": geometric_mean(values) for mode, values in speeds.items()}
    found["speed"] = geometric_mean([v for values in speeds.values() for v in values])
    found["compile"] = geometric_mean(compiles)
    return found


def rows(records: list[dict[str, Any]]) -> list[list[str]]:
    """Return the table as text, the head first."""
    names = ("eager", "inductor", "meta")
    head = ["model", "mode", *(f"{n}, ms" for n in names), "speed"]
    head += [f"compile {n}, s" for n in names[1:]]
    table = [head]
    for r in records:
        ms, seconds = r["ms"], r.get("compile", {})
        speed = f"{ms['inductor'] / ms['meta']:.2f}x" if "inductor" in ms else ""
        line = [r["model"], r["mode"], *(f"{ms[n]:.2f}" if n in ms else "" for n in names), speed]
        table.append([*line, *(f"{seconds[n]:.1f}" if n in seconds else "" for n in names[1:])])
    return table


def main() -> int:
    """Measure and print; return 1 if ``--check`` finds a goal missed."""
    parser = parser_of(__doc__)
    add_names(parser, "--models", ROWS)
    add_names(parser, "--modes", MODES)
    add_threads(parser, threads=2)
    parser.add_argument("--no-inductor", action="store_true", help="leave Inductor out")
    parser.add_argument("--freeze", action="store_true", help="the option of both for inference")
    parser.add_argument("--no-first-call", action="store_true", help="time steps only")
    add_outputs(parser, page=False)
    parser.add_argument("--first-call", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.first_call:
        print(json.dumps(first_call(*options.first_call)))
        return 0
    set_threads(options.threads)
    compiler = not options.no_inductor and has_compiler()
    backends = ["meta", *(["inductor"] if compiler else [])]
    records = []
    for name in options.models:
        for mode in options.modes:
            records.append(record(name, mode, backends, options))
            print(json.dumps(records[-1]), file=sys.stderr, flush=True)
    where, means = conditions(compiler, f"medians of {options.rounds} turns"), summary(records)
    note = ", ".join(f"{name} {value:.2f}x" for name, value in means.items())
    write(options, where, {"models": records, "means": means}, rows(records), [note])
    missed = means["speed"] < LEAST_SPEED or means["compile"] > MOST_COMPILE
    return int(options.check and missed)


if __name__ == "__main__":
    sys.exit(main())
