"""Every operator that computes has a cost on the CPU: by the operators' records."""

from __future__ import annotations

import gc
import math
from typing import Any

import pytest
import torch

import meta
from meta.base.registry import OPERATORS
from meta.cost.record import Cost, Timing
from meta.ir import TensorType
from meta.op.core import tree
from meta.op.core.op import by_schema
from meta.runtime.ndarray import ndarray
from meta.testing.case import OpCase, Sample
from meta.testing.opcheck import explained
from tests.op.records import CASES as RECORDS

CASES = [c for c in RECORDS if c.samples and "cpu" in c.devices]
OURS = ("fails", "is wrong", "cannot be made", "the gradient", "was not measured")
"""How refusals begin that are no dialect's own."""


@pytest.fixture(autouse=True)
def torch_kernels() -> None:
    """All dialects take part here."""


def measured(case: OpCase, one: Sample, dtype: str, **options: Any) -> list[Cost]:
    leaves, structure = tree.flatten(one.make(dtype))
    args, kwargs = tree.unflatten(structure, [ndarray(t.contiguous()) for t in leaves])
    return meta.measure(by_schema(OPERATORS[case.op]), *args, **kwargs, **options)


def live_bytes() -> int:
    """Return the bytes of all tensors that are alive, and not frozen."""
    gc.collect()
    found = {}
    for one in gc.get_objects():
        # Those of other tests may be sparse.
        if type(one) is torch.Tensor and one.device.type == "cpu" and one.layout is torch.strided:
            storage = one.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=[f"{c.op}-{i}" for i, c in enumerate(CASES)])
def test_every_operator_has_a_cost(case: OpCase) -> None:
    one = next((s for s in case.samples if s.is_smooth), case.samples[0])
    dtype = "float32" if "float32" in case.dtypes or not case.dtypes else case.dtypes[0]
    # At kinks and infinities, dialects may have different gradients.
    costs = measured(case, one, dtype, iters=3, backward=one.is_smooth)
    if not explained(case, one, dtype):
        assert costs == []
        return
    accepted = [c for c in costs if not c.refused]
    assert accepted, costs
    assert not [c for c in costs if c.refused.startswith(OURS)], costs
    rule = OPERATORS[case.op].aspects.gradient
    has_gradient = case.grad and one.has_floats and rule is not None and rule.function is not None
    for cost in accepted:
        assert cost.forward is not None and 0 < cost.forward.median < math.inf
        assert cost.compile is not None and cost.compile >= 0
        if has_gradient and one.is_smooth:
            assert cost.backward is not None and 0 < cost.backward.median < math.inf
            assert cost.bytes["gradients"] > 0 or cost.bytes["outputs"] == 0
    # What is there takes seconds to look through after thousands of tests. It stays frozen, as what
    # is collected does: later tests would look through all of it.
    gc.freeze()
    measured(case, one, dtype, iters=1, backward=one.is_smooth)
    assert live_bytes() == 0


STABLE: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "tanh": (meta.tanh, (TensorType((256, 256), "float32"),)),
    "softmax": (meta.softmax, (TensorType((64, 512), "float32"),)),
    "matmul": (meta.matmul, (TensorType((128, 128), "float32"),) * 2),
    "sum": (meta.sum, (TensorType((1000, 100), "float32"),)),
    "permute": (meta.permute_dims, (TensorType((64, 128, 8), "float32"), (2, 0, 1))),
}
ATTEMPTS = 6


@pytest.mark.slow
@pytest.mark.parametrize("dialect", ["torch", "tvm"])
@pytest.mark.parametrize("name", STABLE)
def test_twice_as_many_rounds_tell_the_same(name: str, dialect: str) -> None:
    """The median of one is within the spread of the other, and the other way round. What else the
    machine does may come between the two, so that there are several attempts, each with more
    rounds.
    """
    op, args = STABLE[name]

    def timing(rounds: int) -> Timing:
        costs = meta.measure(op, *args, dialect=dialect, iters=rounds)
        (cost,) = (c for c in costs if not c.config)
        assert cost.forward is not None and cost.forward.count == rounds
        return cost.forward

    tried = []
    for attempt in range(ATTEMPTS):
        rounds = 20 << attempt
        once, twice = timing(rounds), timing(2 * rounds)
        if once.p20 <= twice.median <= once.p80 and twice.p20 <= once.median <= twice.p80:
            return
        tried.append((once, twice))
    raise AssertionError(f"not once in {ATTEMPTS} attempts: {tried}")
