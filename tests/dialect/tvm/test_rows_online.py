"""Rows that threads cannot hold: maxima and sums of exponentials in one sweep; emulated."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import meta
from meta import op
from meta.dialect import only
from meta.dialect.tvm.schedule_cuda import row_plan
from tests.emulator import compiler
from tests.emulator.operators import emulated_cuda


@pytest.mark.parametrize("resident", [0, 96])
@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda x, t: op.softmax(x), lambda x, t: x.softmax(-1)),
        (lambda x, t: op.log_softmax(x), lambda x, t: x.log_softmax(-1)),
        (op.cross_entropy, F.cross_entropy),
    ],
)
def test_results_are_those_of_two_sweeps(
    run: Callable, expected: Callable, resident: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler.compiler()
    monkeypatch.setattr(row_plan, "MOST_HELD", 0)
    monkeypatch.setattr(row_plan, "RESIDENT", resident)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 8219, generator=generator) * 3  # not every row begins at a vector
    x[0, :5] = -torch.inf  # a row's first elements are below all that can be
    x[1, 4000] = 60.0  # what was added up before is nothing beside it
    x[2] -= 1e4
    labels = torch.tensor([17, 4000, 8218])
    with emulated_cuda(), only("tvm"):
        found = run(meta.array(x), meta.array(labels)).torch()
    torch.testing.assert_close(found.double(), expected(x.double(), labels), rtol=1e-5, atol=1e-5)
