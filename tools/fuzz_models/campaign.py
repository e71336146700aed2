"""Many cases, in processes that may die."""

from __future__ import annotations

import gc
import os
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

import torch

from meta.testing.workers import Lost, answer_all, in_processes
from tools.fuzz_models.draw import Style, generate
from tools.fuzz_models.minimise import minimise
from tools.fuzz_models.rows import ROWS
from tools.fuzz_models.run import Failure, Way, check
from tools.fuzz_models.script import script

UNITS = 150
"""Cases that a process does before another takes its place, which frees its kernels."""
TIMEOUT = 300.0
COUNTED, MOST_ALIVE = 25, 100
"""After how many cases a process counts its tensors, and by how many these may grow."""


@dataclass(frozen=True)
class Case:
    """One program, and how it is run. ``quick``: a small program."""

    seed: int
    way: Way
    quick: bool = False
    only: tuple[str, ...] = ()


@dataclass(frozen=True)
class Record:
    """What came of a case."""

    case: Case
    kind: str = ""
    text: str = ""
    script: str = ""
    steps: int = 0


@dataclass
class Summary:
    """What came of many."""

    seconds: float = 0.0
    done: int = 0
    steps: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    failures: list[Record] = field(default_factory=list)

    def add(self, record: Record) -> None:
        """Count a case in."""
        self.done += 1
        self.steps += record.steps
        self.kinds[record.kind or "right"] += 1
        if record.kind:
            self.failures.append(record)

    def record(self) -> dict[str, Any]:
        """Return everything as JSON has it."""
        return {
            "cases": self.done,
            "operators": self.steps,
            "seconds": round(self.seconds, 1),
            "kinds": dict(self.kinds),
            "failures": [
                {
                    "seed": r.case.seed,
                    "way": str(r.case.way),
                    "kind": r.kind,
                    "text": r.text,
                    "script": r.script,
                }
                for r in self.failures
            ],
        }


EXTENT_FREE = (
    *(name for name, row in ROWS.items() if row.draw.__module__.endswith((".unary", ".binary"))),
    *(
        name  # of many numbers the partial products overflow, or not
        for name, row in ROWS.items()
        if row.reference.__qualname__.startswith("along.") and name != "prod"
    ),
    *("permute_dims", "swapaxes", "expand_dims", "concat", "stack", "where", "astype", "flip"),
    *("softmax", "log_softmax", "layer_norm", "rms_norm", "bias_add", "cumsum", "sort", "argsort"),
    *("matmul", "matmul_nt", "matmul_tn", "dense", "batch_matmul", "batch_matmul_nt"),
    *("tril", "triu", "mse_loss", "l1_loss", "huber_loss", "addcmul", "lerp", "linear_scan"),
)
"""Operators whose arguments do not follow from extents, for programs of symbolic dimensions."""


def style_of(case: Case) -> Style:
    """Return what kind of program a case has, which follows from the case alone."""
    random = Random(case.seed ^ 0x5EED)
    gradient = case.way.gradient
    smooth, writes = gradient, not gradient and case.way.executor != "autocast"
    only = case.only
    if case.way.executor == "dynamic":
        only = tuple(name for name in only or EXTENT_FREE if name in EXTENT_FREE)
        writes = False
    # Under autocast what a branch or a loop carries changes its dtype, which is an error.
    control = case.way.executor not in ("autocast", "dynamic")
    if case.quick:
        return Style(5, 9, 400, smooth, control=control, writes=writes, only=only)
    most = random.choices((8, 14, 24, 40), (5, 3, 1.5, 0.5))[0]
    kind = random.random()
    floats = ("float64", "float32") if smooth else Style.floats
    return Style(
        5,
        most,
        3000,
        smooth,
        special=kind < 0.05 and not smooth,
        large=0.05 <= kind < 0.08,
        control=control,
        writes=writes,
        floats=floats,
        only=only,
    )


def run_case(case: Case, seconds: float = 60.0) -> Record:
    """Run a case; make it smaller, for so many seconds, if it fails."""
    program = generate(case.seed, style_of(case))
    failure = check(program, case.way)
    if failure is None:
        return Record(case, steps=program.size)
    if failure.kind != "lost" and seconds:
        smaller = minimise(program, lambda p: _fails(p, case.way, failure), seconds)
        program, failure = smaller, check(smaller, case.way) or failure
    return Record(
        case, failure.kind, failure.text, script(program, case.way, failure), program.size
    )


def _fails(program: Any, way: Way, failure: Failure) -> bool:
    found = check(program, way)
    return found is not None and found.signature == failure.signature


def serve(connection: Connection, folder: str, seconds: float) -> None:
    """Answer cases; called in a process of its own."""
    with tempfile.TemporaryDirectory(dir=folder or None) as cache:
        os.environ["META_CACHE_DIR"] = cache
        os.environ.setdefault("META_CACHE_SIZE", "256")
        warnings.simplefilter("ignore")
        left, first = UNITS, None

        def answer(case: Case) -> tuple[Record, bool]:
            nonlocal left, first
            left -= 1
            record = run_case(case, seconds)
            if left % COUNTED == 0 and not record.kind:
                alive = tensors_alive()
                first = alive if first is None else first
                if alive > first + MOST_ALIVE:
                    text = f"{alive} tensors are alive, after {UNITS - left} cases, {first} before"
                    return Record(case, "leaked", text), False
            return record, left > 0

        answer_all(connection, answer)


def run_cases(
    cases: Sequence[Case], jobs: int, seconds: float, folder: str = "", smaller: float = 60.0
) -> Iterator[Record]:
    """Iterate over what comes of cases, for at most so many seconds."""
    end = time.monotonic() + seconds
    for case, answer in in_processes(cases, serve, (folder, smaller), jobs, TIMEOUT):
        if isinstance(answer, Lost):
            yield Record(case, "lost", answer.why)
        else:
            yield answer
        if time.monotonic() > end:
            return


def cases_of(
    count: int, seed: int, ways: Sequence[Way], quick: bool = False, only: tuple[str, ...] = ()
) -> list[Case]:
    """Return so many cases: case i has the seed ``seed + i`` and the ways take turns."""
    return [Case(seed + i, ways[i % len(ways)], quick, only) for i in range(count)]


def tensors_alive() -> int:
    """Return how many tensors there are."""
    gc.collect()
    return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())


def write_failure(record: Record, folder: Path) -> Path:
    """Write the script of a failure; return where."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{record.case.seed}_{record.case.way}".replace(" ", "_").replace(":", "")
    path = folder / f"{name}.py"
    path.write_text(record.script or f"# {record.text}\n")
    return path
