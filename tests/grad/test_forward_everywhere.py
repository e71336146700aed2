"""Forward mode of every operator, eager and as a pass, beside the oracle of the operator's record,
which goes backwards: ``dy · (J dx) = (dy J) · dx``. Nothing is listed by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import meta
from meta.base.registry import OPERATORS
from meta.grad import jvp
from meta.op.core import tree
from meta.op.core.op import by_schema
from tests.grad.test_torch_autograd_everywhere import (
    OPERATIONS,
    arrays,
    directions,
    entering,
    gradients,
    is_floating,
)


@pytest.fixture(autouse=True)
def torch_kernels() -> Iterator[None]:
    """Nothing is compiled: operators have tests of their own on each dialect."""
    with meta.dialect.prefer("torch"):
        yield


SMOOTH = {
    name: found
    for name, found in OPERATIONS.items()
    if found[0].grad and found[0].second and not OPERATORS[name].schema.written
}


@pytest.mark.parametrize("mode", ["eager", "traced"])
@pytest.mark.parametrize("name", SMOOTH)
def test_operators(name: str, mode: str) -> None:
    case, sample = SMOOTH[name]
    (args, kwargs), leaves = entering(sample.make("float64"))
    oracle = tree.flatten(case.oracle(*args, **kwargs))[0]
    wanted = [y for y in oracle if is_floating(y) and y.requires_grad]
    dys = directions(wanted)
    dxs = [torch.randn_like(x) for x in leaves]
    pairs = zip(gradients(wanted, dys, leaves), dxs, strict=True)
    backwards = sum(float((g.conj() * dx).sum().real) for g, dx in pairs)

    flat, structure = tree.flatten((args, kwargs))
    moving = [i for i, v in enumerate(flat) if is_floating(v)]

    def call(*given: Any) -> Any:
        values = [meta.array(v) if isinstance(v, torch.Tensor) else v for v in flat]
        for i, value in zip(moving, given, strict=True):
            values[i] = value
        args, kwargs = tree.unflatten(structure, values)
        return by_schema(OPERATORS[name])(*args, **kwargs)

    meta.random.seed(0)
    primals = [meta.array(x.detach()) for x in leaves]
    tangents = list(map(meta.array, dxs))
    forward = lambda *given: jvp(call, given[: len(moving)], given[len(moving) :])[1]  # noqa: E731
    if mode == "traced":
        forward = meta.model.trace(forward)
    found = [a.torch().detach() for a in arrays(forward(*primals, *tangents))]
    found = [t for t, y in zip(found, [y for y in oracle if is_floating(y)], strict=True)
             if y.requires_grad]  # fmt: skip
    forwards = sum(float((dy.conj() * t).sum().real) for dy, t in zip(dys, found, strict=True))
    assert forwards == pytest.approx(backwards, rel=1e-6, abs=1e-8)
