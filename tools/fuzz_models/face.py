"""A face: a part of `meta` that random programs are run against. The campaign runs all alike."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

MODULES = {
    "models": "tools.fuzz_models.models",
    "torch_compile": "tools.fuzz_models.torch_compile.face",
    "training_step": "tools.fuzz_models.training_step.face",
    "onnx": "tools.fuzz_models.onnx_graphs",
}
"""The module of each face, which has it as FACE; imported when it is used."""

KINDS = (
    "wrong value",
    "wrong type",
    "wrong alias",
    "wrong strides",
    "raw",
    "refused",
    "overwritten",
    "lost",
)
"""A wrong element; another shape or dtype; memory that is shared, or is not; another order in
memory; an exception that is no MetaError; a MetaError, though the program is sound; an argument
written that was not to be, or a result that a later call changed; a process that died or took too
long."""


@dataclass(frozen=True)
class Case:
    """One program, and how it is run.

    way: what the face makes of the options; `str` of it is shown. quick: a small program. only:
    operators it is restricted to.
    """

    seed: int
    way: Any
    quick: bool = False
    only: tuple[str, ...] = ()
    face: str = "models"


@dataclass(frozen=True)
class Record:
    """What came of a case. kind: of the failure, "" for none. steps: how many operators it has."""

    case: Case
    kind: str = ""
    text: str = ""
    script: str = ""
    steps: int = 0


@dataclass(frozen=True)
class Failure:
    """What went wrong. kind: one of KINDS. where: the stage, the result or the error's type."""

    kind: str
    where: str
    text: str
    result: int | None = None

    @property
    def signature(self) -> tuple[str, str]:
        """What stays the same while the program is made smaller."""
        return self.kind, self.where if self.kind in ("raw", "refused") else ""


@dataclass(frozen=True)
class Face:
    """What the campaign asks of a face.

    ways: the ways in which the options say to run programs, which take turns; an unknown name in
    the options is a ValueError. run_case: runs a case, and makes it smaller for at most so many
    seconds if it fails; called in a process of its own. text: the program of a case, as Python.
    counts_tensors: whether tensors that stay alive are a failure.
    """

    ways: Callable[[Namespace], Sequence[Any]]
    run_case: Callable[[Case, float], Record]
    text: Callable[[Case], str]
    counts_tensors: bool = True


def face_of(name: str) -> Face:
    """Return the face of a name of MODULES."""
    found: Face = import_module(MODULES[name]).FACE
    return found


P = TypeVar("P")


def examine(
    case: Case,
    program: P,
    check: Callable[[P], Failure | None],
    minimise: Callable[[P, Callable[[P], bool], float], P],
    script: Callable[[P, Failure], str],
    size: Callable[[P], int],
    seconds: float,
) -> Record:
    """Run a program; make it smaller, for so many seconds, if it fails.

    check: runs it, and returns what is wrong. minimise: see `smallest`. script: returns a script
    that stands alone. size: the number of its steps.
    """
    failure = check(program)
    if failure is None:
        return Record(case, steps=size(program))
    if seconds:
        signature = failure.signature

        def fails(smaller: P) -> bool:
            found = check(smaller)
            return found is not None and found.signature == signature

        program = minimise(program, fails, seconds)
        failure = check(program) or failure
    return Record(case, failure.kind, failure.text, script(program, failure), size(program))


def smallest(
    program: P,
    fails: Callable[[P], bool],
    candidates: Sequence[Callable[[P], Iterator[P]]],
    sound: Callable[[P], bool],
    seconds: float,
) -> P:
    """Return the smallest program found for which ``fails`` is true, as it is for the one given.

    candidates: each yields simpler programs of a program. sound: whether a program means something
    at all. ``fails`` is not called after so many seconds.
    """
    end = time.monotonic() + seconds
    best, changed = program, True
    while changed and time.monotonic() < end:
        changed = False
        for simpler in candidates:
            again = True
            while again and time.monotonic() < end:
                again = False
                for candidate in simpler(best):
                    if time.monotonic() > end:
                        break
                    if sound(candidate) and fails(candidate):
                        best, again, changed = candidate, True, True
                        break
    return best
