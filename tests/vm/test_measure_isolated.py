"""Kernels that hang or end their process are refused, and the measuring process goes on."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import meta
from meta.dialect import HANDWRITTEN
from meta.ir import TensorType
from tests.vm.fakes import Fakes

X = TensorType((8, 4), "float32")


@pytest.fixture(autouse=True)
def torch_kernels() -> None:
    """All dialects take part here."""


@pytest.fixture
def hanging() -> Iterator[Any]:
    """The module that registers them."""
    module = importlib.import_module("tests.vm.hanging")
    yield module
    module.remove()
    del sys.modules["tests.vm.hanging"]


LATE = "did not finish within 2.5 s in a process of its own"
long = partial(pytest.param, marks=pytest.mark.long)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("hanging_kernel", LATE),
        long("hanging_compiler", LATE),
        long("hanging_dies", "ended a process of its own with status 3"),
        long("hanging_raises", "fails: RuntimeError: no such instruction"),
        ("hanging_not", ""),
    ],
)
@pytest.mark.long
def test_what_may_hang_is_tried_elsewhere(hanging: Any, name: str, reason: str) -> None:
    start = time.monotonic()
    with meta.dialect.only("torch", name):
        costs = meta.measure(hanging.OP, X, iters=3)
    seconds = time.monotonic() - start
    found = {cost.dialect: cost for cost in costs}
    assert found[name].refused == reason
    assert (found[name].forward is None) == bool(reason)
    assert found["torch"].forward is not None
    assert seconds < hanging.SLEEP / 2


@pytest.mark.parametrize("shape", [(3, 2), long((0,))])
def test_given_arrays_are_those_of_the_other_process(hanging: Any, shape: Any) -> None:
    values = meta.array(np.ones(shape, "float32"))
    with meta.dialect.only("torch", "hanging_not"):
        (cost,) = meta.measure(hanging.OP, values, iters=1, dialect="hanging_not")
    assert cost.refused == ""


def test_what_is_excluded_is_not_tried(hanging: Any) -> None:
    names = ("torch", "hanging_kernel")
    with meta.dialect.only(*names), meta.dialect.exclude("hanging_kernel"):
        (cost,) = meta.measure(hanging.OP, X, iters=1, dialect="hanging_kernel")
    assert cost.refused == "excluded by exclude()"


def test_what_no_process_can_import_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes = Fakes()
    try:
        fakes.kernel(meta.tanh, "fake", HANDWRITTEN + 1, 1.0, meta.tanh, time_limit=1.0)
        name = fakes.made[0].site.file
        module = next(n for n, m in sys.modules.items() if getattr(m, "__file__", None) == name)
        monkeypatch.delitem(sys.modules, module)
        (cost,) = meta.measure(meta.tanh, X, iters=1, dialect="fake")
    finally:
        fakes.remove()
    assert "a process of its own cannot import" in cost.refused and name in cost.refused
