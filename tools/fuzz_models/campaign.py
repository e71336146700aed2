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
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from meta.testing.workers import Lost, answer_all, in_processes
from tools.fuzz_models.face import Case, Record, face_of

UNITS = 150
"""Cases that a process does before another takes its place, which frees its kernels."""
TIMEOUT = 300.0
COUNTED, MOST_ALIVE = 25, 100
"""After how many cases a process counts its tensors, and by how many these may grow."""


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
                    "face": r.case.face,
                    "seed": r.case.seed,
                    "way": str(r.case.way),
                    "kind": r.kind,
                    "text": r.text,
                    "script": r.script,
                }
                for r in self.failures
            ],
        }


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
            face = face_of(case.face)
            if face.counts_tensors or first is None:
                record = face.run_case(case, seconds)
            else:  # what it compiles keeps some, which are no leak of the others
                before = tensors_alive()
                record = face.run_case(case, seconds)
                first += tensors_alive() - before
            if face.counts_tensors and left % COUNTED == 0 and not record.kind:
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
    count: int,
    seed: int,
    ways: Sequence[Any],
    quick: bool = False,
    only: tuple[str, ...] = (),
    face: str = "models",
) -> list[Case]:
    """Return so many cases: case i has the seed ``seed + i`` and the ways take turns."""
    return [Case(seed + i, ways[i % len(ways)], quick, only, face) for i in range(count)]


def tensors_alive() -> int:
    """Return how many tensors there are, but for those without memory that torch.compile keeps."""
    gc.collect()
    kinds = (type(o) for o in gc.get_objects())
    return sum(issubclass(t, torch.Tensor) and not issubclass(t, FakeTensor) for t in kinds)


def write_failure(record: Record, folder: Path) -> Path:
    """Write the script of a failure; return where."""
    folder.mkdir(parents=True, exist_ok=True)
    case = record.case
    name = f"{case.face}_{case.seed}_{case.way}".replace(" ", "_").replace(":", "")
    path = folder / f"{name}.py"
    path.write_text(record.script or f"# {record.text}\n")
    return path
