"""What becomes of a model: imported, run, compiled and differentiated, and under `torch.compile`,
compared with torch.

A tensor is right if it is within 1e-4 of the largest number in it of what torch computes in
float32, or else no further from what torch computes in float64 than rounding leads
(`rounding.bounded`), or than torch's own result is. Rounding may also put the argument of a relu
on the other side of 0, and move a gradient by much more: then the stage is run in float64 as well,
and has to give torch's numbers there.
"""

from __future__ import annotations

import copy
import re
import time
import warnings
from dataclasses import dataclass, field

import torch

from tools.client_models.rounding import Bounded, bounded, doubled, in_float64
from tools.client_models.row import Row
from tools.client_models.stages import IMPORTED, Run, Stages, Tensors, run_of

TOLERANCE = 1e-4
KINK = 1e-4
"""How far a result in float64 may be off, in parts of what rounding to float32 does."""


@dataclass
class Outcome:
    """What became of a row.

    Attributes
    ----------
    errors: by stage (`STAGES`), the largest error of a tensor, in parts of the largest number in
    it. rounding: stages with tensors that are further
    from torch's than `TOLERANCE` and left out there, but right. failed: by stage, why. seconds: by
    stage. refused: the stage at which torch itself refuses the module, and why, as the row says.
    """

    name: str
    errors: dict[str, float] = field(default_factory=dict)
    rounding: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    refused: str | None = None

    @property
    def passes(self) -> bool:
        """Whether nothing is wrong."""
        return not self.failed


def measure(name: str, row: Row, dialect: str | None, stages: list[str]) -> Outcome:
    """Return what becomes of a row, with a dialect preferred in compiled programs."""
    outcome = Outcome(name)
    one = Stages(row.module(), row.batch(), dialect)
    comparison = Comparison(outcome, one)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for stage in ["import", *stages]:
            if "import" in outcome.failed and stage in IMPORTED:  # it has been said
                continue
            start = time.perf_counter()
            try:
                if stage == "import":
                    _ = one.model
                    continue
                found = one(stage)
                outcome.seconds[stage] = time.perf_counter() - start
                comparison(stage, found)
            except Exception as error:  # all kinds: it is what the table says
                if row.refused and re.search(row.refused, str(error), re.DOTALL):
                    outcome.refused = f"{stage}: {row.cause}"
                    break
                outcome.failed[stage] = f"{type(error).__name__}: {error}"
    return outcome


class Comparison:
    """Compares what stages give with torch, and adds to the outcome what came of it."""

    def __init__(self, outcome: Outcome, one: Stages) -> None:
        self.outcome, self.one = outcome, one
        self._bounds: dict[Run, Bounded] = {}

    def __call__(self, stage: str, found: Tensors) -> None:
        """Add the error of a stage, and what is wrong."""
        run, outcome = run_of(stage), self.outcome
        own = run(copy.deepcopy(self.one.module), self.one.inputs)
        compared = stage.endswith("gradients")
        wanted = {n: own[n] for n in found if n in own} if compared else own
        wrong = [n for n in wanted if n not in found or found[n].shape != wanted[n].shape]
        if wrong:
            outcome.failed[stage] = f"{wrong[0]} is missing, or of another shape"
            return
        errors = {n: _error(found[n], w) for n, w in wanted.items()}
        far = {n: e for n, e in errors.items() if not e <= TOLERANCE}
        outcome.errors[stage] = max((e for n, e in errors.items() if n not in far), default=0.0)
        if not far:
            return
        bounds = self._bounded(run)
        ours, theirs = _off(bounds, found), bounds.errors(own)
        worst = max(far, key=ours.__getitem__)
        said = f"{worst} is off {far[worst]:.2g}: {ours[worst]:.2g} of what rounding does"
        said += f", torch's own {theirs[worst]:.2g}"
        further = [n for n in far if not ours[n] <= max(1.0, theirs[n])]
        if further:
            with in_float64():
                exact = _off(bounds, self._in_float64(stage))
            largest = max(exact.values())
            said += f"; in float64 {largest:.1g}"
            if not largest <= KINK:
                outcome.failed[stage] = said
                return
        outcome.rounding[stage] = f"{len(far)} tensors by rounding; {said}"

    def _bounded(self, run: Run) -> Bounded:
        if run not in self._bounds:
            self._bounds[run] = bounded(self.one.module, self.one.inputs, run)
        return self._bounds[run]

    def _in_float64(self, stage: str) -> Tensors:
        return Stages(*doubled(self.one.module, self.one.inputs), self.one.dialect)(stage)


def _off(bounds: Bounded, found: Tensors) -> dict[str, float]:
    """Return how far tensors are off, in parts of the bounds."""
    return bounds.errors({n: found.get(n, bounds.exact[n]) for n in bounds.exact})


def _error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the largest difference, in parts of the largest number that is wanted."""
    found, wanted = found.double(), wanted.double()
    differ = (found != wanted) & ~(found.isnan() & wanted.isnan())
    if not differ.any():
        return 0.0
    largest = float(wanted[wanted.isfinite()].abs().max()) if wanted.isfinite().any() else 0.0
    off = float((found - wanted)[differ].abs().max())
    return off / largest if largest else float("inf")
