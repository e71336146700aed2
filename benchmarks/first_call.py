"""Where the time of a first call goes: a model's, cold and warm, and that of new eager kernels.

    python benchmarks/first_call.py [--rows bert-train-fp16,resnet50-train-fp16] [--device cuda]
    python benchmarks/first_call.py --contender dynamo --rows gptneox-train-bf16,vit-infer-bf16
        --together --profile-to FOLDER

Each row of dynamo_cuda.py is compiled and called in two processes of its own, one after the
other: *cold* with empty caches, *warm* with what the first one kept; ``--together``: only cold, all
rows at the same time. *backend* is all that `meta` does for torch.compile: what is left of the
total, but for the runs, is torch's own. Phases may be part of others. The clock starts when
libraries are imported, and model and inputs made. With ``--parts`` TVM is imported before the clock
starts, and what runs on several threads is in brackets, summed over the threads. *imports*, those
of the dialects and of TVM, are part of the phase, or the pass, that needs them first. *kernels*: an
elementwise kernel called eagerly for the first time in a process, others after it, and many in one
program.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import importlib
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from command import parser_of
from models.contenders import DYNAMO, Contender
from models.cuda_strangers import EVERY_ROW
from turns import synchronize
from worker_processes import compile_bytecode, records_of

import meta
import meta.frontend.dynamo.compiler
from meta.vm.run.compiled_program import CompiledProgram

PHASES = (
    ("backend", "meta.frontend.dynamo.compiler", "fuse_attention"),
    ("backend", "meta.frontend.dynamo.compiler", "fuse_composites"),
    ("backend", "meta.frontend.dynamo.compiler", "_partition"),
    ("backend", "meta.frontend.dynamo.compiler", "_compile_graph"),
    ("partition", "meta.frontend.dynamo.compiler", "_partition"),
    ("convert", "meta.frontend.dynamo.compiler", "convert_graph"),
    ("trace", "meta.vm.compilation", "to_program"),
    ("key", "meta.vm.save.program_cache", "key_of"),
    ("read program", "meta.vm.save.program_cache", "find"),
    ("imports", "meta.dialect.core.dialect", "Dialect.load"),
    ("passes", "meta.passes.manager", "Pipeline.__call__"),
    ("code", "meta.vm.compilation", "emit"),
    ("find kernels", "meta.vm.compiler.kernels", "_find"),
    ("compile kernels", "meta.vm.compiler.kernels", "compile_together"),
    ("keep program", "meta.vm.save.program_cache", "store"),
)
"""Phases by the function that is all of one, and where it is looked up."""
THREADED = (
    ("schedule", "meta.dialect.tvm.schedule_cuda", "schedule"),
    ("TVM", "tvm", "compile"),
    ("NVRTC", "meta.runtime.nvrtc", "compile_source"),
    ("write and load", "meta.dialect.tvm.cache", "store"),
)
SLOWEST, MANY = 6, 64


class Clock:
    """Seconds by phase; of calls within a call of the same phase only the outer counts."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inside: dict[str, int] = defaultdict(int)

    def watch(self, phase: str, module: str, path: str) -> None:
        """Time a function of a module, or a method."""
        owner: Any = importlib.import_module(module)
        *outer, name = path.split(".")
        for part in outer:
            owner = getattr(owner, part)
        setattr(owner, name, self._timed(phase, getattr(owner, name)))

    def _timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            self._inside[phase] += 1
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self._inside[phase] -= 1
                if not self._inside[phase] or phase.startswith("("):
                    self.seconds[phase] += time.perf_counter() - start

        return run


def first_call(
    row: str, name: str, device: str, tiny: bool, threaded: bool, profile: cProfile.Profile | None
) -> dict[str, Any]:
    """Return the seconds of a row's first call and of its parts; imports TVM if ``threaded``."""
    contender = Contender(EVERY_ROW[row], name, device, tiny)
    clock = Clock()
    for part in PHASES:
        clock.watch(*part)
    if threaded:
        for phase, module, path in THREADED:
            clock.watch(f"({phase})", module, path)
    synchronize(device)
    start = time.perf_counter()
    with nullcontext() if profile is None else profile:
        call = contender.compiled()
        compiled = time.perf_counter()
        call()
        synchronize(device)
    end = time.perf_counter()
    call()
    synchronize(device)
    seconds = {"total": end - start, **clock.seconds}
    seconds |= {"first run": end - compiled, "second run": time.perf_counter() - end}
    passes: dict[str, float] = defaultdict(float)
    for program in [o for o in gc.get_objects() if issubclass(type(o), CompiledProgram)]:
        for one in program.history:
            passes[f"pass {one.name}"] += one.seconds
    slowest = sorted(passes, key=lambda one: -passes[one])[:SLOWEST]
    return seconds | {one: passes[one] for one in slowest if passes[one] > 0.01}


def kernels(device: str) -> dict[str, Any]:
    """Return the seconds of a first kernel, of another one, and of many that are built together."""
    x = meta.array(torch.ones(1000, 8), device=device)

    def timed(call: Callable[[], Any]) -> float:
        synchronize(device)
        start = time.perf_counter()
        call()
        synchronize(device)
        return time.perf_counter() - start

    found = {"first kernel, with imports": timed(lambda: meta.tanh(x))}
    found["one new kernel"] = timed(lambda: meta.sigmoid(x))
    with meta.dialect.only("tvm"):
        found["one new kernel of TVM"] = timed(lambda: meta.erf(x))
        arrays = [meta.array(torch.ones(n, 3), device=device) for n in range(7, 7 + MANY)]
        run = meta.model.trace(lambda *arrays: tuple(meta.exp(a) for a in arrays))
        found[f"{MANY} kernels in one program"] = timed(lambda: meta.vm.compile(run, *arrays))
    return found


def in_a_process(folder: str, *arguments: str) -> dict[str, float]:
    """Return what a process of this file prints, with its caches in a folder."""
    (found,) = records_of(folder, __file__, "--worker", *arguments, META_PROGRESS="off")
    return dict(found)


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--rows", default="bert-train-fp16,resnet50-train-fp16")
    parser.add_argument("--contender", choices=("meta", DYNAMO), default="meta")
    parser.add_argument("--together", action="store_true", help="all rows at the same time, cold")
    parser.add_argument("--profile-to", type=Path, metavar="FOLDER", help="profiles of cProfile")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small sizes")
    parser.add_argument(
        "--parts",
        action="store_true",
        help="also what runs on threads; TVM is imported before the clock starts",
    )
    parser.add_argument("--worker", choices=("cold", "warm", "kernels"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker == "kernels":
        print(json.dumps(kernels(options.device)))
        return
    if options.worker:
        profile = cProfile.Profile() if options.profile_to else None
        how = (options.device, options.tiny, options.parts, profile)
        print(json.dumps(first_call(options.rows, options.contender, *how)))
        if profile is not None:
            options.profile_to.mkdir(parents=True, exist_ok=True)
            profile.dump_stats(options.profile_to / f"{options.rows}.{options.worker}.prof")
        return
    compile_bytecode()
    parts = {"cold": ["--parts"] if options.parts else [], "warm": []}
    same = ["--device", options.device, *(["--tiny"] if options.tiny else [])]
    same += ["--profile-to", str(options.profile_to)] if options.profile_to else []

    def measured(row: str) -> None:
        own = ["--rows", row, "--contender", options.contender, *same]
        with tempfile.TemporaryDirectory() as folder:
            for what in ("cold",) if options.together else ("cold", "warm"):
                found = in_a_process(folder, what, *own, *parts[what])
                print(f"{row} {what}: {text(found)}", flush=True)

    rows = options.rows.split(",")
    with ThreadPoolExecutor(len(rows) if options.together else 1) as pool:
        list(pool.map(measured, rows))
    if options.together:
        return
    with tempfile.TemporaryDirectory() as folder:
        print(f"kernels: {text(in_a_process(folder, 'kernels', *same))}")


def text(seconds: dict[str, float]) -> str:
    """Return phases with their seconds on one line."""
    return ", ".join(f"{phase} {found:.2f}" for phase, found in seconds.items())


if __name__ == "__main__":
    main()
