"""What becomes of a model: it is taken through stages, whose results are compared with those of
torch, or of onnxruntime.
"""

from __future__ import annotations

import re
import time
import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meta import MetaError

IMPORT = "import"
IMPORTED = ("eager", "compiled", "gradients", "compiled gradients")
"""Stages of the model that is imported."""
STAGES = (*IMPORTED, "torch.compile", "torch.compile gradients")


@dataclass
class Outcome:
    """What became of a model.

    Attributes
    ----------
    errors: by stage (`STAGES`), the largest error of a result, in parts of the largest number in
    it. rounding: stages with results that are further off than is allowed and left out there, but
    right. failed: by stage, why. seconds: by stage. refused: the stage at which the model is
    refused for the cause that its row names, and the cause. missing: why the model cannot be run
    here at all. facts: of an ONNX file, the number of its nodes, how many there are of each
    operator, the opset, and the sizes of the inputs at each run.
    """

    name: str
    errors: dict[str, float] = field(default_factory=dict)
    rounding: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    refused: str | None = None
    missing: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def passes(self) -> bool:
        """Whether nothing is wrong."""
        return not self.failed


class Missing(Exception):
    """A model that cannot be run here at all; the message says why."""


class Subject(ABC):
    """A model and its inputs. stages: those of `STAGES` that it can be taken through."""

    stages: tuple[str, ...] = STAGES

    @abstractmethod
    def run(self, stage: str) -> Any:
        """Return what a stage gives: `IMPORT`, then others."""

    @abstractmethod
    def compare(self, stage: str, found: Any, outcome: Outcome) -> None:
        """Note the error of what a stage gave, and what is wrong with it."""


@dataclass(frozen=True, kw_only=True)
class Row(ABC):
    """A model of a library.

    Attributes
    ----------
    refused: what the error says at a stage at which the model is refused, a regular expression, and
    ``cause``: what is the reason.
    """

    refused: str | None = None
    cause: str | None = None

    @abstractmethod
    def subject(self, outcome: Outcome, dialect: str | None) -> Subject:
        """Return the model; what is known of it before it runs is noted. Raises Missing."""


def measure(name: str, row: Row, dialect: str | None, stages: Sequence[str]) -> Outcome:
    """Return what becomes of a row, with a dialect preferred in compiled programs."""
    outcome = Outcome(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            subject = row.subject(outcome, dialect)
        except Missing as error:
            outcome.missing = str(error)
            return outcome
        for stage in [IMPORT, *(s for s in stages if s in subject.stages)]:
            if IMPORT in outcome.failed and stage in IMPORTED:  # it has been said
                continue
            start = time.perf_counter()
            try:
                found = subject.run(stage)
                outcome.seconds[stage] = time.perf_counter() - start
                if stage != IMPORT:
                    subject.compare(stage, found, outcome)
            except Exception as error:  # all kinds: it is what the table says
                if row.refused and re.search(row.refused, str(error), re.DOTALL):
                    outcome.refused = f"{stage}: {row.cause}"
                    break
                outcome.failed[stage] = _described(error)
    return outcome


def _described(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, MetaError):
        return text
    last = traceback.extract_tb(error.__traceback__)[-1]  # it is a fault
    return f"{text} ({Path(last.filename).name}:{last.lineno})"
