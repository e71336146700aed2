"""Architectures of transformers come in right, and are compiled right: results and gradients.

Each result is compared with what the module computes in float64, within what rounding to float32
makes of it (`tests/frontend/rounding.py`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import meta
from meta import op
from meta.frontend import from_torch
from meta.frontend.relax import RelaxError
from meta.model import Model, trace
from tests.frontend.architectures import ROWS, Row
from tests.frontend.rounding import Bounded, bounded


@pytest.fixture(autouse=True)
def warnings_of_others() -> Iterator[None]:
    """Ignore what transformers warns of while it is exported."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"transformers\.|torch\.")
        yield


def leaves(result: Any) -> dict[str, torch.Tensor]:
    """Return the arrays of a result by number."""
    found = enumerate(pytree.tree_leaves(result))
    return {str(i): x if isinstance(x, torch.Tensor) else x.torch() for i, x in found}


def results(module: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        return leaves(module(**inputs))


def require(reference: Bounded, found: dict[str, torch.Tensor], what: str) -> None:
    """Check that arrays are what they must be but for rounding, and that this says something: the
    bound of an array is small beside it or, where it is a difference that vanishes, beside all.
    """
    sizes = {n: float(x.abs().max()) for n, x in reference.exact.items()}
    for name, size in sizes.items():
        assert reference.bounds[name] <= max(1e-3 * size, 1e-6 * max(sizes.values())), name
    errors = reference.errors(found)
    worst = max(errors, key=errors.__getitem__)
    assert errors[worst] <= 1, f"{what}: {worst} is off {errors[worst]:.3g} times its bound"


def arrays_of(inputs: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {n: meta.array(x) for n, x in inputs.items()}


def rows(chosen: Any) -> list[Any]:
    """Return the names of rows, those that are not quick marked as slow."""
    marks = {n: () if ROWS[n].quick else pytest.mark.slow for n in chosen}
    return [pytest.param(n, marks=m) for n, m in marks.items()]


@pytest.mark.parametrize("name", rows(n for n, row in ROWS.items() if row.refused is None))
def test_results(name: str) -> None:
    module, inputs = ROWS[name].module(), ROWS[name].batch()
    reference = bounded(module, inputs, results)
    require(reference, results(module, inputs), "transformers in float32")
    model, arrays = from_torch(module, (), inputs), arrays_of(inputs)
    with meta.dialect.prefer("torch"):
        require(reference, leaves(model(**arrays)), "interpreter")
    for level in (None, 3):
        compiled = meta.vm.compile(model, opt_level=level, **arrays)
        require(reference, leaves(compiled(**arrays)), f"compiled at level {level}")


@pytest.mark.parametrize("name", rows(n for n, row in ROWS.items() if row.refused is not None))
def test_what_does_not_import(name: str) -> None:
    row: Row = ROWS[name]
    with pytest.raises(RelaxError, match=str(row.refused)) as caught:
        from_torch(row.module(), (), row.batch())
    assert caught.value.hint


class SquaresOf(Model):
    """The sum of the squares of all that a network returns."""

    def build(self, network: Model) -> None:
        self.network = network

    @trace
    def forward(self, inputs: dict[str, Any]) -> Any:
        total: Any = 0.0
        for y in pytree.tree_leaves(self.network(**inputs)):
            total = op.add(total, op.sum(op.multiply(y, y)))
        return total


def gradients(module: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the sum of squares, and its gradients by name; 0 for what it does not depend on."""
    parameters = dict(module.named_parameters())
    loss = sum(y.square().sum() for y in leaves(module(**inputs)).values())
    found = torch.autograd.grad(
        loss, [*parameters.values()], allow_unused=True, materialize_grads=True
    )
    return {"loss": loss, **dict(zip(parameters, found, strict=True))}


@pytest.mark.long
@pytest.mark.parametrize("name", rows(["bert", "gpt2", "llama", "t5-encoder", "vit", "resnet"]))
def test_gradients(name: str) -> None:
    module, inputs = ROWS[name].module(), ROWS[name].batch()
    reference = bounded(module, inputs, gradients)
    model, arrays = SquaresOf(from_torch(module, (), inputs)), arrays_of(inputs)
    with meta.dialect.prefer("torch"):
        loss = model(arrays)
        loss.backward()
    tape = {n: p.grad for n, p in model.named_parameters()}
    step = meta.vm.compile(meta.model.value_and_grad(model), meta.array(1.0), arrays)
    for what, (y, found) in (("tape", (loss, tape)), ("compiled", step(meta.array(1.0), arrays))):
        named = {n.removeprefix("network."): g.torch() for n, g in found.items()}
        require(reference, {"loss": y.torch(), **named}, what)
