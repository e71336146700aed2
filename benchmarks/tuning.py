"""What measuring kernels gains on a CUDA device: models and operators of `meta` untuned and tuned,
beside torch.compile(mode="max-autotune"), in one run.

    python benchmarks/tuning.py [--rows bert-train-fp16,operators] [--budget 60] [--check]
    python benchmarks/tuning.py --rows bert-infer1-fp16       # and others of models/cuda_rows.py
    python benchmarks/tuning.py --records tuning.jsonl        # a run that was ended goes on
    python benchmarks/tuning.py --markdown                    # rewrites docs/measurements.md

*untuned* is compiled with META_TUNE=off, *tuned* with ``tune=SECONDS`` and an empty store. A model
runs in a process of its own, in which all contenders take turns. *second* is how long a second
process measures that compiles it with the same store, *max-autotune, s* how long torch.compile
takes. *predicted* is `meta.analysis.cost` of the tuned program. Of operators, calls are captured in
CUDA graphs, as in kernels_cuda.py; *stale* ones are those of which the table of levels is known to
be old.

Goals, held by ``--check``: no row slower than untuned by more than 2 %, one model faster by 5 %,
a geometric mean of 1.1 of the stale operators, no measuring in the second process, predictions
within 15 %.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from command import add_names, add_outputs, parser_of
from cuda_kernel import Kernel, normal
from kernel_list_cuda import KERNELS, WIDE
from kernels_cuda import DTYPES, compare, inputs_of, precise, timed
from models.contenders import AUTOTUNED, Call, Contender
from models.cuda_rows import ROWS
from report import conditions_cuda, say, write
from turns import on_device
from worker_processes import records_of

import meta
from meta.base import config
from meta.cli.tune import changes

MODELS = ("bert-train-fp16", "gpt2-train-bf16", "resnet50-train-fp16", "resnet50-infer-fp16")
OPERATORS = "operators"
BEGIN = "<!-- written by benchmarks/tuning.py --markdown -->"
CALLS, ROUNDS, WARM_UP = 10, 12, 10
NOISE, MODEL_GAIN, STALE_GAIN, PREDICTED = 0.02, 0.05, 1.1, 0.15
EXTRA = [
    Kernel(
        "scans", name, lambda x, f=ours: f(x, 0), lambda x, f=theirs: f(x, 0), normal(WIDE),
        dtypes=(torch.float32,),
    )
    for name, ours, theirs in (
        ("cumsum down columns", meta.cumsum, torch.cumsum),
        ("cumprod down columns", meta.cumprod, torch.cumprod),
    )
]  # fmt: skip
OTHERS = ("add", "sum, last axis", "layer_norm", "softmax", "transpose", "gelu")
"""Kernels of `kernel_list_cuda` that are not known to be stale."""


def operators() -> list[tuple[Kernel, str, bool]]:
    """Return kernels, the precision of each, and whether its level is known to be stale."""
    found = [(kernel, "float32", True) for kernel in EXTRA]
    for kernel in KERNELS:
        if kernel.name == "dropout":
            found.append((kernel, "float16", True))
        elif kernel.group == "convolutions":
            found.append((kernel, "tf32", True))
        elif kernel.group == "products":
            found += [(kernel, p, ", " in kernel.name) for p in ("float16", "tf32")]
        elif kernel.name in OTHERS:
            found.append((kernel, "float16", False))
    return found


def operator(kernel: Kernel, precision: str, budget: float, compiler: bool) -> dict[str, Any]:
    """Return the record of an operator."""
    dtype = DTYPES[precision]

    def run(*given: Any) -> Any:
        return kernel.meta(*given)

    def ours(tune: float | None) -> tuple[Callable[[], Any], Any]:
        arrays = [meta.array(t) for t in inputs_of(kernel, dtype)]
        program = meta.model.trace(run)
        with config.override(META_TUNE="cached" if tune else "off"):
            made = meta.vm.compile(program, *arrays, device="cuda", cuda_graph=False, tune=tune)
        return (lambda: made(*arrays)), made

    calls: dict[str, Any] = {}
    calls["untuned"], _ = ours(None)
    begin = time.perf_counter()
    calls["tuned"], tuned = ours(budget)
    seconds = time.perf_counter() - begin
    given, other = inputs_of(kernel, dtype), inputs_of(kernel, dtype)
    calls["eager"] = lambda: kernel.torch(*other)
    if compiler:
        torch._dynamo.reset()
        compiled = torch.compile(kernel.torch, dynamic=False, mode="max-autotune-no-cudagraphs")
        calls[AUTOTUNED] = lambda: compiled(*given)
    compare(kernel, precision, calls)
    times = timed(calls)
    return {
        "row": f"{kernel.name}, {precision}",
        "ms": times,
        "tune_s": seconds,
        "changes": list(changes(tuned)),
    }


def model(name: str, budget: float, compiler: bool) -> Iterator[dict[str, Any]]:
    """Iterate over the records of a model; of this process, which has all contenders: one without
    torch.compile, which may take minutes, and one with it, in which all take turns once more.
    """
    untuned, tuned = (Contender(ROWS[name], "meta", "cuda") for _ in range(2))
    calls = {}
    with config.override(META_TUNE="off"):
        calls["untuned"] = untuned.compiled()
    say(f"{name}: compiled, untuned")
    begin = time.perf_counter()
    with meta.cost.measured(budget):
        calls["tuned"] = tuned.compiled()
    seconds = time.perf_counter() - begin
    say(f"{name}: tuned in {seconds:.0f} s")
    program = tuned.executable
    cost = meta.analysis.cost(program.module, program.device)
    record = {
        "row": name,
        "tune_s": seconds,
        "predicted_ms": cost.total / 1e3,
        "measured_share": cost.measured_share,
        "changes": list(changes(program)),
    }
    yield {**record, "ms": in_turns(calls)}
    if compiler:
        theirs = Contender(ROWS[name], AUTOTUNED, "cuda")
        begin = time.perf_counter()
        calls[AUTOTUNED] = theirs.compiled()
        calls[AUTOTUNED]()
        torch.cuda.synchronize()
        yield {**record, "autotune_s": time.perf_counter() - begin, "ms": in_turns(calls)}


def in_turns(calls: dict[str, Call]) -> dict[str, float]:
    """Return the milliseconds of each call."""
    for call in calls.values():
        for _ in range(WARM_UP):
            call()
    return on_device(calls, ROUNDS, CALLS)


def second(name: str, budget: float) -> dict[str, Any]:
    """Return how long a process measures that finds another's store."""
    contender = Contender(ROWS[name], "meta", "cuda")
    begin = time.perf_counter()
    with meta.cost.measured(budget) as spent:
        contender.compiled()
    return {"second_s": time.perf_counter() - begin, "second_tuning_s": spent.seconds}


def worker(options: Any, name: str, folder: str, *flags: str) -> Iterator[dict[str, Any]]:
    """Iterate over the records of a model, or of operators, from a process of its own."""
    tf32 = str(int(name in ROWS and ROWS[name].precision == "tf32"))
    given = ["--worker", name, *flags, "--budget", str(options.budget)]
    given += ["--no-compile"] * options.no_compile
    yield from records_of(folder, __file__, *given, META_TF32=tf32)


def measured_twice(options: Any, name: str, folder: str) -> Iterator[dict[str, Any]]:
    """Measure a model, and then in a second process what is left to be measured. The records before
    the last are without what the second process says, so that they are not lost with that.
    """
    record: dict[str, Any] = {}
    for record in worker(options, name, folder):
        yield {**record, "second_tuning_s": None}
    (again,) = worker(options, name, folder, "--second")
    yield {**record, **again}


def gain(record: dict[str, Any]) -> float:
    """Return the time untuned divided by the time tuned."""
    ms: dict[str, float] = record["ms"]
    return ms["untuned"] / ms["tuned"]


def missed(records: list[dict[str, Any]]) -> list[str]:
    """Return the goals that are missed."""
    found = [f"{r['row']} is slower tuned" for r in records if gain(r) < 1 - NOISE]
    models = [r for r in records if "predicted_ms" in r]
    if models and max(map(gain, models)) < 1 + MODEL_GAIN:
        found.append("no model gains 5 %")
    stale = [gain(r) for r in records if r.get("stale")]
    if stale and statistics.geometric_mean(stale) < STALE_GAIN:
        found.append("stale operators gain less than 10 %")
    for r in models:
        if r["second_tuning_s"] is None:
            found.append(f"{r['row']} ended before the second process")
        elif r["second_tuning_s"] > 0:
            found.append(f"{r['row']} is measured twice")
        if abs(r["predicted_ms"] / r["ms"]["tuned"] - 1) > PREDICTED:
            found.append(f"{r['row']} is predicted wrong")
    return found


def rows(records: list[dict[str, Any]]) -> list[list[str]]:
    """Return the table as text, the head first."""

    def seconds(record: dict[str, Any], key: str) -> str:
        return "" if record.get(key) is None else f"{record[key]:.1f}"

    head = ["work", "changed", "untuned, ms", "tuned, ms", "gain", "max-autotune, ms", "to it"]
    head += ["tuning, s", "second, s", "max-autotune, s", "predicted, ms"]
    lines = []
    for r in records:
        changed = sorted({str(c["after"]).partition("@")[0] for c in r["changes"]})
        ms = r["ms"]
        predicted = f"{r['predicted_ms']:.3f}" if "predicted_ms" in r else ""
        best = ms.get(AUTOTUNED)
        lines.append(
            [
                r["row"] + (" (stale)" if r.get("stale") else ""),
                " and ".join(changed),
                *(f"{ms['untuned']:.3f}", f"{ms['tuned']:.3f}", f"{gain(r):.2f}x"),
                *(("", "") if best is None else (f"{best:.3f}", f"{ms['tuned'] / best:.2f}x")),
                *(f"{r['tune_s']:.1f}", seconds(r, "second_tuning_s"), seconds(r, "autotune_s")),
                predicted,
            ]
        )
    return [head, *lines]


def summary(records: list[dict[str, Any]]) -> list[str]:
    """Return the means, and what is missed."""
    stale = [gain(r) for r in records if r.get("stale")]
    found = [f"Missed: {', '.join(missed(records)) or 'nothing'}."]
    if stale:
        mean = statistics.geometric_mean(stale)
        found.insert(0, f"Geometric mean of {len(stale)} stale operators: {mean:.2f}x.")
    return found


def main() -> int:
    """Measure and print; return 1 if ``--check`` finds a goal missed."""
    parser = parser_of(__doc__)
    add_names(parser, "--rows", (*ROWS, OPERATORS))
    parser.set_defaults(rows=[*MODELS, OPERATORS])
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of tuning; default 60")
    parser.add_argument("--records", type=Path, help="keep what is measured in this file")
    parser.add_argument("--filter", default="", help="only operators whose name contains this")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--worker", help="measure this row here; the benchmark calls itself")
    parser.add_argument("--second", action="store_true", help="with --worker: compile only")
    add_outputs(parser)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no CUDA device")
    if options.worker == OPERATORS:
        return _operators(options)
    found: Iterable[dict[str, Any]]
    if options.worker:
        if options.second:
            found = [second(options.worker, options.budget)]
        else:
            found = model(options.worker, options.budget, not options.no_compile)
        for record in found:
            print(json.dumps(record), flush=True)
        return 0
    # Of a row's records the last one counts.
    lines = map(json.loads, _lines(options.records))
    records = list({record["row"]: record for record in lines}.values())
    known = {r["row"] for r in records if r.get("second_tuning_s", 0.0) is not None}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.rows:
            if name in known or (name == OPERATORS and any("stale" in r for r in records)):
                continue
            say(name)
            place = f"{folder}/{name}"
            if name == OPERATORS:
                found = worker(options, name, place, "--filter", options.filter)
            else:
                found = measured_twice(options, name, place)
            for record in found:
                say(f"{record['row']}: {gain(record):.3f}x")
                records = [r for r in records if r["row"] != record["row"]] + [record]
                if options.records:
                    with options.records.open("a") as file:
                        file.write(json.dumps(record) + "\n")
    notes = summary(records)
    figures = {"rows": records, "missed": missed(records)}
    where = conditions_cuda(f"tuned for at most {options.budget:g} s each")
    write(options, where, figures, rows(records), notes, BEGIN)
    return int(options.check and bool(missed(records)))


def _operators(options: Any) -> int:
    with torch.no_grad():
        for kernel, precision, stale in operators():
            if options.filter in kernel.name:
                with precise(precision):
                    record = operator(kernel, precision, options.budget, not options.no_compile)
                print(json.dumps({**record, "stale": stale}), flush=True)
                torch.cuda.empty_cache()
    return 0


def _lines(path: Path | None) -> list[str]:
    return path.read_text().splitlines() if path is not None and path.exists() else []


if __name__ == "__main__":
    sys.exit(main())
