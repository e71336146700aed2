"""Results whose extents the data decide: eager, interpreted, compiled, and read by other calls."""

import sys
from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.base.errors import IRError
from meta.dialect.core import OpEnv


def arrays(*values: list[Any]) -> list[meta.ndarray]:
    return [meta.array(torch.tensor(v)) for v in values]


@meta.model.trace
def distinct(x):
    """How often each value occurs, and the values."""
    values, counts = op.unique(x, return_counts=True)
    return values, counts


def test_a_compiled_program_returns_another_extent_at_each_call() -> None:
    few, many = arrays([2.0, 1.0, 2.0], [3.0, 1.0, 2.0])
    compiled = meta.vm.compile(distinct, few)
    for x, values in ((few, [1, 2]), (many, [1, 2, 3]), (few, [1, 2])):
        for run in (distinct, compiled):
            found, counts = run(x)
            assert found.shape == counts.shape == (len(values),)
            assert found.numpy().tolist() == values


def test_the_program_says_that_the_extent_is_unknown() -> None:
    assert "float32[?]" in str(distinct.program(*arrays([1.0, 2.0])).module)


def test_a_result_can_be_used_at_once() -> None:
    x = meta.array(torch.tensor([[0, 3], [5, 0]]))
    places = op.permute_dims(op.argwhere(x))
    assert op.gather_nd(x, places).numpy().tolist() == [3, 5]


def test_a_kernel_that_fills_its_result_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    filling = OpEnv(lambda condition, out: None, allocates=False)
    monkeypatch.setattr(
        sys.modules["meta.vm.eager.decided_call"], "dispatch", lambda call, **_: filling
    )
    with pytest.raises(IRError, match="only it can know"):
        op.argwhere(*arrays([[[[1.0]]]]))  # of a type that no other call has made a plan for
