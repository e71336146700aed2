"""What becomes of a model: imported, run, compiled and differentiated, and under `torch.compile`,
compared with torch.

A tensor is right if it is within 1e-4 of the largest number in it of what torch computes in
float32, or else no further from what torch computes in float64 than rounding leads
(`rounding.bounded`), or than torch's own result is.
"""

from __future__ import annotations

import copy
import re
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

import meta
import meta.frontend.dynamo
from meta import op
from meta.frontend import from_torch
from meta.frontend.torch.containers import adopt
from meta.model import Model, trace
from meta.op.core import tree
from tools.client_models.rounding import bounded
from tools.client_models.row import Row

IMPORTED = ("eager", "compiled", "gradients", "compiled gradients")
"""Stages of the model that `from_torch` makes."""
STAGES = (*IMPORTED, "torch.compile", "torch.compile gradients")
TOLERANCE = 1e-4
Tensors = dict[str, torch.Tensor]
Run = Callable[[torch.nn.Module, dict[str, torch.Tensor]], Tensors]


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


def leaves(result: Any) -> Tensors:
    """Return the arrays of a result by number; those of float only, which are compared."""
    adopt(result)
    found = tree.flatten(result)[0]
    tensors = [x if isinstance(x, torch.Tensor) else x.torch() for x in found]
    return {str(i): x for i, x in enumerate(tensors)}


def results(module: torch.nn.Module, inputs: Tensors) -> Tensors:
    """Return what a module returns, by number."""
    with torch.no_grad():
        return leaves(module(**inputs))


def gradients(module: torch.nn.Module, inputs: Tensors) -> Tensors:
    """Return the sum of squares of the results, and its gradients by name."""
    module.train()
    parameters = {n: p for n, p in module.named_parameters() if p.requires_grad}
    loss = sum(y.square().sum() for y in leaves(module(**inputs)).values() if y.is_floating_point())
    found = torch.autograd.grad(
        loss, [*parameters.values()], allow_unused=True, materialize_grads=True
    )
    return {"loss": loss.detach(), **dict(zip(parameters, found, strict=True))}


class SquaresOf(Model):
    """The sum of the squares of all that a network returns."""

    def build(self, network: Model) -> None:
        self.network = network

    @trace
    def forward(self, inputs: dict[str, Any]) -> Any:
        total: Any = 0.0
        for y in tree.flatten(self.network(**inputs))[0]:
            if "float" in y.dtype:
                total = op.add(total, op.sum(op.multiply(y, y)))
        return total


def measure(name: str, row: Row, dialect: str | None, stages: list[str]) -> Outcome:
    """Return what becomes of a row, with a dialect preferred in compiled programs."""
    outcome = Outcome(name)
    module, inputs = row.module(), row.batch()
    arrays = {n: meta.array(x) for n, x in inputs.items()}
    preferred = meta.dialect.prefer(dialect) if dialect else nullcontext()

    def eager() -> Tensors:
        with meta.dialect.prefer("torch"):
            return leaves(model(**arrays))

    def compiled() -> Tensors:
        with preferred:
            return leaves(meta.vm.compile(model, **arrays)(**arrays))

    def tape() -> Tensors:
        network = SquaresOf(copy.deepcopy(model))
        with meta.dialect.prefer("torch"):
            loss = network.train()(arrays)
            loss.backward()
        found = {n: p for n, p in network.named_parameters() if p.requires_grad}
        zeros = {n: torch.zeros(tuple(p.shape)) for n, p in found.items()}
        grads = {n: p.grad for n, p in found.items()}
        return _named(loss, {n: zeros[n] if g is None else g.torch() for n, g in grads.items()})

    def step() -> Tensors:
        network = SquaresOf(copy.deepcopy(model)).train()
        one = meta.array(1.0)
        with preferred:
            run = meta.vm.compile(meta.model.value_and_grad(network), one, arrays)
            loss, found = run(one, arrays)
        return _named(loss, {n: g.torch() for n, g in found.items()})

    def imported() -> Tensors:
        nonlocal model
        model = from_torch(module, (), inputs)
        return {}

    def under_torch_compile(run: Run) -> Tensors:
        torch._dynamo.reset()
        network = copy.deepcopy(module)
        options = {"fallback": "error", **({"dispatch": dialect} if dialect else {})}
        network.compile(backend="meta", fullgraph=True, options=options)
        return run(network, inputs)

    model: Any = None
    runs = {
        "import": (imported, None),
        "eager": (eager, results),
        "compiled": (compiled, results),
        "gradients": (tape, gradients),
        "compiled gradients": (step, gradients),
        "torch.compile": (partial(under_torch_compile, results), results),
        "torch.compile gradients": (partial(under_torch_compile, gradients), gradients),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for stage in ["import", *stages]:
            if model is None and stage in IMPORTED:  # what is wrong with it has been said
                continue
            start = time.perf_counter()
            try:
                found = runs[stage][0]()
                outcome.seconds[stage] = time.perf_counter() - start
                _compare(outcome, stage, module, inputs, found, runs[stage][1])
            except Exception as error:  # all kinds: it is what the table says
                if row.refused and re.search(row.refused, str(error), re.DOTALL):
                    outcome.refused = f"{stage}: {row.cause}"
                    break
                outcome.failed[stage] = f"{type(error).__name__}: {error}"
    return outcome


def _named(loss: Any, found: Tensors) -> Tensors:
    return {"loss": loss.torch(), **{n.removeprefix("network."): g for n, g in found.items()}}


def _compare(
    outcome: Outcome,
    stage: str,
    module: torch.nn.Module,
    inputs: Tensors,
    found: Tensors,
    run: Run | None,
) -> None:
    """Add the error of a stage, and what is wrong."""
    if run is None:
        return
    wanted = run(copy.deepcopy(module), inputs)
    wanted = {n: wanted[n] for n in found if n in wanted} if stage.endswith("gradients") else wanted
    wrong = [n for n in wanted if n not in found or found[n].shape != wanted[n].shape]
    if wrong:
        outcome.failed[stage] = f"{wrong[0]} is missing, or of another shape"
        return
    errors = {n: _error(found[n], w) for n, w in wanted.items()}
    far = {n: e for n, e in errors.items() if not e <= TOLERANCE}
    outcome.errors[stage] = max((e for n, e in errors.items() if n not in far), default=0.0)
    if not far:
        return
    reference = bounded(module, inputs, run)
    ours = reference.errors({n: found.get(n, reference.exact[n]) for n in reference.exact})
    theirs = reference.errors(run(copy.deepcopy(module), inputs))
    worst = max(far, key=ours.__getitem__)
    said = f"{worst} is off {far[worst]:.2g}: {ours[worst]:.2g} of what rounding does"
    said += f", torch's own {theirs[worst]:.2g}"
    if all(ours[n] <= max(1.0, theirs[n]) for n in far):
        outcome.rounding[stage] = f"{len(far)} tensors by rounding; {said}"
    else:
        outcome.failed[stage] = said


def _error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the largest difference, in parts of the largest number that is wanted."""
    found, wanted = found.double(), wanted.double()
    differ = (found != wanted) & ~(found.isnan() & wanted.isnan())
    if not differ.any():
        return 0.0
    largest = float(wanted[wanted.isfinite()].abs().max()) if wanted.isfinite().any() else 0.0
    off = float((found - wanted)[differ].abs().max())
    return off / largest if largest else float("inf")
