"""One contender of one row in a process of its own, which prints what it measured as JSON.

    PYTHONPATH=benchmarks python -m models.cuda_worker bert-train-fp16 meta [--profile] [--tiny]
        [--trace-to FOLDER]

The order: libraries are imported, model and inputs made; then the *first call*, from the start of
compilation to the first result; a few more calls, whose results are reported for comparison;
warm-up; the timed calls, between CUDA events and without waiting in between. *peak* is the most
that torch's allocator had given out from the first call on, parameters included. With ``--wait``
it says that it is ready and waits for a line before the first call, and again before the timed
ones; the line may have numbers of cores, on which it goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any, TextIO

import torch
from turns import steps
from worker_processes import answers_alone

from models.contenders import (
    AUTOTUNED,
    CAPTURED,
    DYNAMO,
    NAMES,
    STEP,
    SYMBOLIC,
    TUNED_KERNELS,
    Call,
    Contender,
)
from models.cuda_profile import operations_of, profile_text
from models.cuda_strangers import EVERY_ROW

COMPARED, WARM_UP, TIMED = 4, 10, 50
SAMPLES = 64
"""Elements of an inference's result that are compared."""
NOT_OURS = ("TensorFloat32 tensor cores", "Warning: Profiler clears events")
"""How warnings of torch begin that say nothing about a measurement."""


def main() -> None:
    """Measure one contender."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("row", choices=EVERY_ROW)
    parser.add_argument(
        "contender", choices=(*NAMES, SYMBOLIC, DYNAMO, AUTOTUNED, TUNED_KERNELS, STEP, CAPTURED)
    )
    parser.add_argument("--first-call-only", action="store_true")
    parser.add_argument("--wait", action="store_true", help="stop and wait for a line twice")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--trace-to", type=Path)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    answers = answers_alone()
    for text in NOT_OURS:
        warnings.filterwarnings("ignore", message=text, category=UserWarning)
    row = EVERY_ROW[options.row]
    contender = Contender(row, options.contender, "cuda", options.tiny)
    result: dict[str, Any] = {"row": options.row, "contender": options.contender}
    if options.wait:
        wait(answers)
    call, result["first_call"] = first_call(contender)
    if not options.first_call_only:
        values = [values_of(call()) for _ in range(COMPARED)]
        for _ in range(WARM_UP):
            call()
        torch.cuda.synchronize()
        if options.wait:
            torch.cuda.empty_cache()  # others compile, who need memory
            wait(answers)
        times, host = steps(call, "cuda", TIMED, WARM_UP)
        peak = torch.cuda.max_memory_allocated() / 2**20
        result |= {"values": values, "ms": median(times), "host_ms": median(host), "peak_mb": peak}
    if options.profile or options.trace_to:
        found = operations_of(call, row, options.contender, options.tiny)
        traced = {**{n: result[n] for n in ("row", "contender", "ms")}, "operations": found}
        if options.trace_to:
            options.trace_to.mkdir(parents=True, exist_ok=True)
            file = options.trace_to / f"{options.row}.{options.contender}.json"
            file.write_text(json.dumps(traced))
        if options.profile:
            print(profile_text(traced), file=sys.stderr, flush=True)
    print(json.dumps(result), file=answers, flush=True)


def wait(answers: TextIO) -> None:
    """Stop until a line comes in; its numbers are the cores to use from then on."""
    print(json.dumps({"ready": True}), file=answers, flush=True)
    if cores := sys.stdin.readline().split():
        os.sched_setaffinity(0, map(int, cores))


def first_call(contender: Contender) -> tuple[Call, float]:
    """Return what runs it, and the seconds from the start of compilation to the first result."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    call = contender.compiled()
    call()
    torch.cuda.synchronize()
    return call, time.perf_counter() - start


def values_of(result: torch.Tensor) -> list[float]:
    """Return a few elements of a result, spread evenly; rows that lie apart are not copied."""
    count = result.numel()
    places = torch.arange(0, count, max(1, count // SAMPLES), device=result.device)
    found = result.detach()[torch.unravel_index(places, result.shape)]
    return found.reshape(-1).float().cpu().tolist()


if __name__ == "__main__":
    main()
