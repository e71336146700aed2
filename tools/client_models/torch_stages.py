"""The stages of a network: imported, run, compiled and differentiated, and under `torch.compile`.

A stage returns tensors by name: results by their number, or a loss and its gradients. A tensor is
right if it is within 1e-4 of the largest number in it of what torch computes in float32, or else no
further from what torch computes in float64 than rounding leads (`rounding.bounded`), or than
torch's own result is. Rounding may also put the argument of a relu on the other side of 0, and move
a gradient by much more: then the stage is run in float64 as well, and has to give torch's numbers
there.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import torch

import meta
import meta.frontend.dynamo
from meta import op
from meta.frontend import from_torch
from meta.frontend.torch.containers import register_containers
from meta.model import Model, trace
from meta.op.core import tree
from tools.client_models.measure import IMPORT, Outcome, Subject
from tools.client_models.rounding import Bounded, bounded, doubled, in_float64

TOLERANCE = 1e-4
KINK = 1e-4
"""How far a result in float64 may be off, in parts of what rounding to float32 does."""
Tensors = dict[str, torch.Tensor]
Run = Callable[[torch.nn.Module, dict[str, torch.Tensor]], Tensors]


def leaves(result: Any) -> Tensors:
    """Return the arrays of a result by number; those of float only, which are compared."""
    register_containers(result)
    found = tree.flatten(result)[0]
    tensors = [x if isinstance(x, torch.Tensor) else x.detach().torch() for x in found]
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


class TorchSubject(Subject):
    """A network and its inputs. dialect: preferred in compiled programs; None for the best of each
    call.
    """

    def __init__(self, module: torch.nn.Module, inputs: Tensors, dialect: str | None) -> None:
        self.module, self.inputs, self.dialect = module, inputs, dialect
        self.arrays = {n: meta.array(x) for n, x in inputs.items()}
        self.preferred = meta.dialect.prefer(dialect) if dialect else nullcontext()
        self._bounds: dict[Run, Bounded] = {}

    @cached_property
    def model(self) -> Any:
        """What `from_torch` makes of the network."""
        return from_torch(self.module, (), self.inputs)

    def run(self, stage: str) -> Any:
        """Run a stage."""
        if stage.startswith("torch.compile"):
            return self._under_torch_compile(run_of(stage))
        return {
            IMPORT: lambda: self.model,
            "eager": self._eager,
            "compiled": self._compiled,
            "gradients": self._tape,
            "compiled gradients": self._step,
        }[stage]()

    def compare(self, stage: str, found: Tensors, outcome: Outcome) -> None:
        """Compare with torch."""
        run = run_of(stage)
        own = run(copy.deepcopy(self.module), self.inputs)
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
        if run not in self._bounds:
            self._bounds[run] = bounded(self.module, self.inputs, run)
        bounds = self._bounds[run]
        ours, theirs = _off(bounds, found), bounds.errors(own)
        worst = max(far, key=ours.__getitem__)
        said = f"{worst} is off {far[worst]:.2g}: {ours[worst]:.2g} of what rounding does"
        said += f", torch's own {theirs[worst]:.2g}"
        further = [n for n in far if not ours[n] <= max(1.0, theirs[n])]
        if further:
            with in_float64():
                wide = TorchSubject(*doubled(self.module, self.inputs), self.dialect)
                exact = _off(bounds, wide.run(stage))
            largest = max(exact.values())
            said += f"; in float64 {largest:.1g}"
            if not largest <= KINK:
                outcome.failed[stage] = said
                return
        outcome.rounding[stage] = f"{len(far)} tensors by rounding; {said}"

    def _eager(self) -> Tensors:
        with meta.dialect.prefer("torch"):
            return leaves(self.model(**self.arrays))

    def _compiled(self) -> Tensors:
        with self.preferred:
            return leaves(meta.vm.compile(self.model, **self.arrays)(**self.arrays))

    def _tape(self) -> Tensors:
        network = SquaresOf(copy.deepcopy(self.model))
        with meta.dialect.prefer("torch"):
            loss = network.train()(self.arrays)
            loss.backward()
        found = {n: p for n, p in network.named_parameters() if p.requires_grad}
        zeros = {n: torch.zeros(tuple(p.shape)) for n, p in found.items()}
        grads = {n: p.grad for n, p in found.items()}
        return _named(loss, {n: zeros[n] if g is None else g.torch() for n, g in grads.items()})

    def _step(self) -> Tensors:
        network = SquaresOf(copy.deepcopy(self.model)).train()
        dtype = str(next(self.module.parameters()).dtype).removeprefix("torch.")
        one = meta.array(1.0, dtype)
        with self.preferred:
            run = meta.vm.compile(meta.model.value_and_grad(network), one, self.arrays)
            loss, found = run(one, self.arrays)
        return _named(loss, {n: g.torch() for n, g in found.items()})

    def _under_torch_compile(self, run: Run) -> Tensors:
        torch._dynamo.reset()
        network = copy.deepcopy(self.module)
        options = {"fallback": "error", **({"dispatch": self.dialect} if self.dialect else {})}
        network.compile(backend="meta", fullgraph=True, options=options)
        return run(network, self.inputs)


def _named(loss: Any, found: Tensors) -> Tensors:
    return {
        "loss": loss.detach().torch(),
        **{n.removeprefix("network."): g for n, g in found.items()},
    }


def run_of(stage: str) -> Run:
    """Return what torch computes for a stage."""
    return gradients if stage.endswith("gradients") else results


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
