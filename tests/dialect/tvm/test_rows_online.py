"""Rows that threads cannot hold: maxima and sums of exponentials in one sweep; emulated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import meta
from meta import op
from meta.dialect import only
from meta.dialect.tvm.schedule_cuda import row_plan
from meta.model import trace
from meta.testing.emulator import compiler
from meta.testing.emulator.operators import emulated_cuda


@pytest.mark.product
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


@pytest.mark.product
@pytest.mark.parametrize("apart", [False, True], ids=["from scores alone", "by statistics"])
@pytest.mark.parametrize("most", [0, None], ids=["in two sweeps", "in registers"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_columns_that_are_padding(
    dtype: str, most: int | None, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is there has no part in a cross entropy; its gradient is 0."""
    compiler.compiler()
    if most is not None:
        monkeypatch.setattr(row_plan, "MOST_HELD", most)
    classes = 4091
    x = torch.randn(3, 4096, generator=torch.Generator().manual_seed(0)) * 3
    x = x.to(getattr(torch, dtype)).float()
    x[:, classes:] = torch.nan
    x[2] = torch.nan
    labels, dy = torch.tensor([17, 4090, -100]), meta.array(0.5)

    @trace
    def step(h: Any, labels: Any, dy: Any) -> Any:
        wide = op.astype(h, "float32")
        if apart:
            loss, *rows = op.cross_entropy_train(wide, labels, classes)
            dx = op.cross_entropy_train_dpred(dy, wide, labels, *rows, classes)
        else:
            loss = op.cross_entropy.plain(wide, labels, classes)
            dx = op.cross_entropy_dpred(dy, wide, labels, classes)
        return loss, op.astype(dx, h.dtype)

    arguments = meta.array(x).astype(dtype), meta.array(labels), dy
    with emulated_cuda(), only("tvm"):
        found = meta.vm.compile(step, *arguments)(*arguments)
    loss, gradient = (a.torch().double() for a in found)
    scores = x[:2, :classes].double().requires_grad_()
    expected = F.cross_entropy(scores, labels[:2])
    (correct,) = torch.autograd.grad(0.5 * expected, scores)
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-5, atol=1e-6)
    tolerance = 1e-6 if dtype == "float32" else 1e-3
    torch.testing.assert_close(gradient[:2, :classes], correct, rtol=1e-2, atol=tolerance)
    assert not gradient[:, classes:].any() and not gradient[2].any()
