"""One rank of one contender, a process that `rank_records` starts and tells what to do.

It compiles, runs the first steps, whose losses it says, then answers each line on its stdin by a
line of JSON: "turn" by the milliseconds of some steps, "trace PATH" by the file of a trace of a few
steps, "end MILLISECONDS" by memory, graphs, and what is predicted of larger meshes from a step of
one rank. Its stdout is for these alone: whatever libraries print goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from functools import partial
from typing import Any, TextIO

import torch
import turns
from torch.profiler import ProfilerActivity
from worker_processes import answers_alone

import meta
from models.rank_contenders import (
    BATCHES,
    JOINED,
    OURS,
    STEP,
    THEIRS,
    Call,
    RankContender,
    RankSetup,
)
from models.rank_rows import RANK_ROWS

WARM_UP, TRACED = 3, 3
MESHES = (8, 64, 1024)
"""Numbers of ranks that are not there."""


def main() -> None:
    """Measure as told."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("row", choices=RANK_ROWS)
    parser.add_argument("contender", choices=(*OURS, STEP, *THEIRS, JOINED))
    parser.add_argument("--most", type=int, required=True, help="the ranks of the joined batch")
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--first", type=int, required=True, help="steps whose losses are said")
    parser.add_argument("--steps", type=int, required=True, help="steps of a turn")
    parser.add_argument("--timeout", type=float, required=True, help="of collectives, in seconds")
    parser.add_argument("--reduce-dtype")
    parser.add_argument("--passes", type=json.loads, default={})
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--no-compile", action="store_true")
    options = parser.parse_args()
    answers = answers_alone()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    mesh = None
    # A process of several sees no GPU but its own.
    device = "cuda:0" if options.device == "cuda" else "cpu"
    if ranks > 1:
        meta.distributed.init(options.device, timeout=options.timeout)
        mesh = meta.distributed.Mesh({"dp": ranks})
    compiler, dtype = not options.no_compile, options.reduce_dtype
    place = RankSetup(rank, ranks, options.most, device, mesh, compiler, dtype, options.passes)
    contender = RankContender(RANK_ROWS[options.row], options.contender, place, options.tiny)
    serve(contender, place, options.first, options.steps, answers)


def serve(
    contender: RankContender, place: RankSetup, first: int, steps: int, answers: TextIO
) -> None:
    """Run the first steps, then do what the lines of stdin say."""

    def say(record: dict[str, Any]) -> None:
        print(json.dumps(record), file=answers, flush=True)

    turns.synchronize(place.kind)
    if place.kind == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    call = contender.compiled()
    losses = [call(0).clone()]
    turns.synchronize(place.kind)
    seconds = time.perf_counter() - start
    losses += [call(i % BATCHES).clone() for i in range(1, first)]
    say({"first_call": seconds, "losses": [float(loss) for loss in losses]})
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        if word == "turn":
            ms, host = turns.steps(partial(call, 0), place.kind, steps, WARM_UP)
            say({"ms": ms, "host_ms": host})
        elif word == "trace":
            say({"trace": trace(call, place, rest)})
        else:
            found = {} if place.kind == "cpu" else {**memory(), **graphs(contender)}
            if rest and contender.executable is not None and place.ranks > 1:
                found["predicted"] = predicted(contender, place, 1e3 * float(rest))
            say(found)
            break
    del call
    contender.release()
    meta.distributed.end()


def trace(call: Call, place: RankSetup, path: str) -> str:
    """Write what the device and the host do in some steps, for Perfetto; return the file."""
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if place.kind == "cuda" else [])]
    turns.synchronize(place.kind)
    with torch.profiler.profile(activities=kinds) as found:
        for _ in range(TRACED):
            call(0)
        turns.synchronize(place.kind)
    file = f"{path}.rank{place.rank}.json"
    found.export_chrome_trace(file)
    return file


def predicted(contender: RankContender, place: RankSetup, kernels: float) -> list[dict[str, Any]]:
    """Return what `meta.analysis.scaling` predicts of this number of ranks, and of more as far as
    the program is for them, from the microseconds of a step of one.
    """
    found = []
    for ranks in (place.ranks, *MESHES):
        run = contender.executable
        try:
            report = meta.analysis.scaling(
                run.module, {"dp": ranks}, device=run.device, kernels=kernels
            )
        except meta.errors.DistributedError:  # the program is for another number of ranks
            continue
        figures = {"ms": report.total / 1e3, "exchanges_ms": report.communication / 1e3}
        memory = {"memory_mb": report.memory_bytes / 2**20}
        found.append({"ranks": ranks, "hosts": report.hosts, **figures, **memory})
    return found


def memory() -> dict[str, float]:
    """Return the most that torch's allocator had given out from the first call on, parameters
    included, and had taken.
    """
    return {
        "peak_mb": torch.cuda.max_memory_allocated() / 2**20,
        "reserved_mb": torch.cuda.max_memory_reserved() / 2**20,
    }


def graphs(contender: RankContender) -> dict[str, Any]:
    """Return into how many CUDA graphs a step of `meta` is recorded, and what is not and why."""
    if contender.executable is None:
        return {}
    report = contender.executable.cuda_graph
    regions = [region for region in report.regions if region.graphs]
    left = [str(region) for region in report.regions if not region.graphs]
    why_not = [*filter(None, [report.why_not]), *left, *report.alone]
    return {"graphs": len(regions), "not_in_graphs": why_not}


if __name__ == "__main__":
    main()
