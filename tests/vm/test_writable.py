"""Arguments that are written: views are written through, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import meta
from meta.base.errors import ArgumentError
from meta.dialect import only
from meta.model import trace
from meta.runtime.ndarray import as_array
from meta.vm import compile


def _step(x: Any, dx: Any, v: Any) -> Any:
    return meta.op.sgd(x, dx, v, 0.5, 0.0)


def _tvm(*arrays: Any) -> Any:
    with only("tvm"):
        return _step(*arrays)


def _torch(*arrays: Any) -> Any:
    with only("torch"):
        return _step(*arrays)


def _compiled(*arrays: Any) -> Any:
    return compile(trace(_step), *arrays, device="cpu")(*arrays)


RUNS = pytest.mark.parametrize("run", [_tvm, _torch, _compiled])


@RUNS
def test_a_view_is_written_through_and_nothing_beside_it(run: Callable[..., Any]) -> None:
    buffer = torch.ones(7, 8)
    view = buffer[1:6:2, 1::3]
    assert view.shape == (3, 3)
    run(as_array(view.T), as_array(torch.full((3, 3), 2.0)), as_array(torch.zeros(3, 3)))
    expected = torch.ones(7, 8)
    expected[1:6:2, 1::3] = 0.0
    assert torch.equal(buffer, expected)


@RUNS
def test_what_is_only_read_may_share_elements(run: Callable[..., Any]) -> None:
    x, dx = torch.ones(3, 4), torch.tensor([2.0]).expand(3, 4)
    run(as_array(x), as_array(dx), as_array(torch.zeros(3, 4)))
    assert torch.equal(x, torch.zeros(3, 4))
    assert torch.equal(dx, torch.full((3, 4), 2.0))


@RUNS
def test_elements_that_share_memory_are_not_written(run: Callable[..., Any]) -> None:
    one, v = torch.tensor([1.0]), torch.zeros(3, 4)
    with pytest.raises(ArgumentError, match="its elements share memory"):
        run(as_array(one.expand(3, 4)), as_array(torch.ones(3, 4)), as_array(v))
    assert one.item() == 1.0
    assert not v.any()
