"""Eager calls with shapes that were not met before, where one kernel serves every shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base.errors import MetaError
from meta.dialect.core.preference import current
from meta.runtime.array_key import key_of
from meta.vm.eager.decided_call import DecidedCall

TWO: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "hypot": np.hypot,
    "fmax": np.fmax,
    "atan2": np.arctan2,
    "less": np.less,
    "not_equal": np.not_equal,
    "logical_and": np.logical_and,
}
ONE: dict[str, Callable[..., Any]] = {
    "exp": np.exp,
    "negative": np.negative,
    "floor": np.floor,
    "copy": np.copy,
    "isnan": np.isnan,
    "tanh": np.tanh,
}
SHAPES = [((), ()), ((0,), (1,)), ((3, 1), (1, 5)), ((7,), ()), ((2, 1, 4), (3, 1)), ((1, 1), (1,))]


@pytest.fixture
def undecided() -> Iterator[dict[Any, Any]]:
    """What is decided from here on, in a preference of its own."""
    plans = current().plans
    kept = dict(plans)
    plans.clear()
    yield plans
    plans.update(kept)


def drawn(shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def requires(result: meta.ndarray, expected: Any) -> None:
    """The values, and a description that is true of the memory."""
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-6)
    assert result.key is key_of(result.torch())


@pytest.mark.parametrize("name", TWO)
def test_two_arrays(undecided: dict[Any, Any], name: str) -> None:
    op = getattr(meta, name)
    known = drawn((2, 3), 0)
    op(meta.array(known), meta.array(known))
    for a, b in SHAPES:
        x, y = drawn(a, 1), drawn(b, 2)
        requires(op(meta.array(x), meta.array(y)), TWO[name](x, y))
        requires(op(meta.array(x), meta.array(y)), TWO[name](x, y))  # the shape is known now
        transposed = meta.array(known).T
        requires(op(transposed, meta.array(y.reshape(-1)[:1])), TWO[name](known.T, y.ravel()[:1]))
    kinds = [k for k, plan in undecided.items() if isinstance(plan, DecidedCall) and plan.fresh]
    assert len(kinds) > len(SHAPES), "no call took the way that this test is about"


@pytest.mark.parametrize("name", ONE)
def test_one_array(undecided: dict[Any, Any], name: str) -> None:
    op = getattr(meta, name)
    op(meta.array(drawn((2, 3), 0)))
    for shape, _ in SHAPES:
        x = drawn(shape, 1)
        requires(op(meta.array(x)), ONE[name](x))


def test_numbers_are_rounded_and_bounded(undecided: dict[Any, Any]) -> None:
    for dtype in ("float32", "int8"):
        for shape in ((2,), (3, 1), ()):
            x = meta.array(np.ones(shape), dtype)
            np.testing.assert_array_equal((x + 1).numpy(), np.full(shape, 2))
            np.testing.assert_array_equal((x * 3).numpy(), np.full(shape, 3))
    assert np.isinf((meta.ones((4,)) + 1e300).numpy()).all()
    for shape in ((2,), (5,)):
        with pytest.raises(MetaError, match="int8"):
            meta.array(np.ones(shape), "int8") + 1000


def test_shapes_that_do_not_fit_are_the_type_functions_error(undecided: dict[Any, Any]) -> None:
    x = meta.ones((2, 3))
    with pytest.raises(MetaError) as first:
        meta.add(x, meta.ones((4,)))
    meta.add(x, x)
    with pytest.raises(MetaError) as second:
        meta.add(x, meta.ones((4,)))
    assert type(first.value) is type(second.value)
    assert "broadcast" in str(first.value) and "broadcast" in str(second.value)


def test_gradients_flow_in_new_shapes(undecided: dict[Any, Any]) -> None:
    meta.multiply(meta.ones((2,)), meta.ones((2,)))
    x, y = torch.randn(3, 1, requires_grad=True), torch.randn(1, 4, requires_grad=True)
    a, b = meta.array(x.detach().numpy()), meta.array(y.detach().numpy())
    a.requires_grad = b.requires_grad = True
    meta.sum(meta.exp(a * b)).backward()
    torch.exp(x * y).sum().backward()
    for ours, theirs in ((a, x), (b, y)):
        assert ours.grad is not None and theirs.grad is not None
        np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-5)
