"""Whole models of `meta` on the CPU beside torch eager and torch.compile, in one run.

    python benchmarks/models_cpu.py [--models lenet,mlp] [--threads 2] [--check] [--json]
    python benchmarks/models_cpu.py --markdown      # also replaces the table in
                                                    # docs/performance.md

Each network of `models/` is run for inference and for training: forward, backward and update by SGD
with momentum, of a cross entropy. `meta` runs a program that `meta.vm.compile` made; torch eager
infers in ``torch.inference_mode`` and updates by ``torch.optim.SGD``; torch.compile has compiled
model, loss and update. All start from equal parameters, and their results and updated parameters
are compared before anything is timed.

The contenders take turns, so that what else happens on the machine happens to all; a figure is the
median of all calls. A turn begins with calls that are not timed, in which the threads of this
contender wake up and those of the one before, which wait for more work in a loop, fall asleep.

*First call* is the time from the start of compilation to the first result, in a fresh process that
has imported the library and made model and inputs: *cold* with empty caches on disk, *warm* the
second time.

The goals, which ``--check`` holds: no row slower than the better of the two torch times; a cold
first call in at most a third of torch.compile's time; a warm one in at most a second.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from typing import Any

import torch
from command import add_names, add_outputs, parser_of
from models import MODES, NETWORKS, row_of
from models.contenders import ON_CPU, Contender
from report import conditions, has_compiler, write
from turns import add_threads, in_turns, set_threads
from worker_processes import records_of

LEAST_RATIO, COLD_SHARE, WARM_SECONDS = 1.0, 1 / 3, 1.0
BEGIN = "<!-- written by benchmarks/models_cpu.py --markdown -->"


def measure(network: str, mode: str, names: list[str], rounds: int) -> dict[str, Any]:
    """Return one record: times in milliseconds by contender, and the ratio to the best of torch."""
    torch._dynamo.reset()
    contenders = {name: Contender(row_of(network, mode), name, "cpu") for name in names}
    calls = {name: contender.compiled() for name, contender in contenders.items()}
    compare(contenders, calls)
    ms = in_turns(calls, rounds)
    return {"ms": ms, "ratio": min(t for n, t in ms.items() if n != "meta") / ms["meta"]}


def compare(contenders: dict[str, Contender], calls: dict[str, Any]) -> None:
    """Call each twice; AssertionError if results or updated parameters differ."""
    results = {name: [call().clone() for _ in range(2)] for name, call in calls.items()}
    states = {name: contender.state() for name, contender in contenders.items()}
    for name in calls:
        for found, expected in zip(results[name], results["eager"], strict=True):
            _same(found, expected, f"the result of {name}")
        for key, expected in states["eager"].items():
            _same(states[name][key], expected, f"{key} after training with {name}")


def _same(found: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    torch.testing.assert_close(
        found, expected, rtol=1e-3, atol=1e-3, msg=lambda text: f"{what}: {text}"
    )


def first_call(network: str, mode: str, name: str, threads: str) -> dict[str, float]:
    """Return the seconds of a first call, in this process."""
    torch.set_num_threads(int(threads))
    contender = Contender(row_of(network, mode), name, "cpu")
    start = time.perf_counter()
    contender.compiled()()
    return {"seconds": time.perf_counter() - start}


def first_calls(*given: str) -> dict[str, float]:
    """Return the seconds of a cold and of a warm first call, in processes of their own."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for state in ("cold", "warm"):
            arguments = (__file__, "--first-call", *given)
            (one,) = records_of(folder, *arguments, TVM_NUM_THREADS=given[-1])
            found[state] = one["seconds"]
    return found


def record(network: str, mode: str, names: list[str], options: Any) -> dict[str, Any]:
    """Return everything about one network in one mode."""
    result: dict[str, Any] = {"model": network, "what": NETWORKS[network].what, "mode": mode}
    result |= measure(network, mode, names, options.rounds)
    if not options.no_first_call:
        for name in ("meta", "compile"):
            if name in names:
                seconds = first_calls(network, mode, name, str(options.threads))
                result |= {f"{state} {name}": s for state, s in seconds.items()}
    result["missed"] = missed(result)
    return result


def missed(result: dict[str, Any]) -> list[str]:
    """Return the goals that a record misses."""
    found = []
    if result["ratio"] < LEAST_RATIO:
        found.append("speed")
    if result.get("cold meta", 0) > COLD_SHARE * result.get("cold compile", float("inf")):
        found.append("cold")
    if result.get("warm meta", 0) > WARM_SECONDS:
        found.append("warm")
    return found


def rows(records: list[dict[str, Any]]) -> list[list[str]]:
    """Return the table as text, the head first."""
    head = ["model", "mode", "meta, ms", "torch eager, ms", "torch.compile, ms", "to best"]
    head += [f"{state} {n}, s" for n in ("meta", "compile") for state in ("cold", "warm")]
    head += ["missed"]
    return [
        head,
        *(
            [
                f"{r['model']} ({r['what']})",
                r["mode"],
                *(f"{r['ms'][n]:.3f}" if n in r["ms"] else "" for n in ON_CPU),
                f"{r['ratio']:.2f}x",
                *(
                    f"{r[key]:.2f}" if (key := f"{state} {n}") in r else ""
                    for n in ("meta", "compile")
                    for state in ("cold", "warm")
                ),
                ", ".join(r["missed"]),
            ]
            for r in records
        ),
    ]


def main() -> int:
    """Measure and print; return 1 if ``--check`` finds a goal missed."""
    parser = parser_of(__doc__)
    add_names(parser, "--models", NETWORKS)
    add_names(parser, "--modes", MODES)
    add_threads(parser)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--no-first-call", action="store_true", help="time warm calls only")
    add_outputs(parser)
    parser.add_argument("--first-call", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.first_call:
        print(json.dumps(first_call(*options.first_call)))
        return 0
    chosen, modes = options.models, options.modes
    if options.markdown and (set(chosen), set(modes)) != (set(NETWORKS), set(MODES)):
        parser.error("--markdown is for all models and modes")
    set_threads(options.threads)
    compiler = not options.no_compile and has_compiler()
    names = [name for name in ON_CPU if compiler or name != "compile"]
    records = []
    for i, (name, mode) in enumerate([(n, m) for n in chosen for m in modes]):
        if sys.stderr.isatty():
            print(
                f"\r{i + 1}/{len(chosen) * len(modes)} {name} {mode:12s}", end="", file=sys.stderr
            )
        records.append(record(name, mode, names, options))
    if sys.stderr.isatty():
        print("\r" + " " * 40 + "\r", end="", file=sys.stderr)
    where = conditions(compiler, f"medians of {options.rounds} turns")
    write(options, where, {"models": records}, rows(records), begin=BEGIN)
    return int(options.check and any(r["missed"] for r in records))


if __name__ == "__main__":
    sys.exit(main())
