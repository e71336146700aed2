"""Numbers that half precision does not hold: literals of calls, and masks that are added."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta import op
from meta.amp import autocast, autocast_scope
from meta.model import Model, trace

HALVES = ["float16", "bfloat16"]
LOW = torch.finfo(torch.float32).min


@trace
def literals(x: Any, below: Any) -> Any:
    """Calls with numbers that a float16 (1e9) or a float32 (1e39) does not hold."""
    big = 1e9 if x.dtype == "float16" else 1e39
    return (
        op.where(below, op.add(x, 0.5), -big),
        op.add(op.full_like(op.relu(x), big), x),
        op.clip(op.negative(x), -big, big),
        op.less(op.negative(x), big),
        op.threshold(op.negative(x), 0.0, big),
        op.pad(op.relu(x), ((1, 0), (0, 0)), constant_values=-big),
        op.maximum(op.abs(x), -big),
        op.sequence_mask(op.abs(x), meta.array([1, 2, 0]), big),
    )


def expected(x: np.ndarray, below: np.ndarray) -> list[np.ndarray]:
    inf = x.dtype.type(np.inf)
    first = np.arange(2)[:, None] < np.array([1, 2, 0])
    return [
        np.where(below, x + x.dtype.type(0.5), -inf),
        np.full_like(x, inf),
        -x,
        np.ones_like(x, bool),
        np.where(-x <= 0, inf, -x),
        np.pad(np.maximum(x, 0), ((1, 0), (0, 0)), constant_values=-inf),
        np.abs(x),
        np.where(first, np.abs(x), inf),
    ]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dialect", ["tvm", "torch"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_number_beyond_the_range_is_infinite(dtype: str, dialect: str, compiled: bool) -> None:
    x = np.array([[-3.0, 0.25, 2.0], [1.0, -0.5, 0.0]], dtype)
    below = np.array([[True, False, True], [False, True, False]])
    args = meta.array(x), meta.array(below)
    with meta.dialect.only(dialect):
        run = meta.vm.compile(literals, *args) if compiled else literals
        found = run(*args)
    for ours, wanted in zip(found, expected(x, below), strict=True):
        np.testing.assert_array_equal(ours.numpy(), wanted)


class Masked(Model):
    """Scores that are masked in one of several ways, and their softmax."""

    def build(self, how: str) -> None:
        self.how = how
        self.weight = meta.model.parameter(meta.array(torch.randn(4, 5)))

    @trace
    def forward(self, x: Any, mask: Any) -> Any:
        scores = op.matmul(x, self.weight)
        match self.how:
            case "where":
                scores = op.where(op.greater(mask, -1.0), scores, -1e9)
            case "full_like":
                scores = op.where(op.less(mask, -1.0), op.full_like(scores, -1e9), scores)
            case "computed":
                scores = scores + op.where(op.less(mask, -1.0), -1e9, mask)
            case "added":
                scores = scores + mask
            case "subtracted":
                scores = scores - op.negative(mask)
        return op.softmax(scores, -1)


MASKS = {"a row of nothing else": [LOW] * 5, "some": [0.0, LOW, 0.0, LOW, LOW]}


@pytest.mark.usefixtures("torch_kernels")
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("how", ["where", "full_like", "computed", "added", "subtracted"])
def test_masks_of_scores_stay_finite(how: str, mask: str, half: str) -> None:
    torch.manual_seed(0)
    model = Masked(how)
    args = meta.array(torch.randn(3, 4) * 20), meta.array(MASKS[mask])
    wanted = model(*args).numpy()
    runs = [autocast(model, half)(*args), meta.vm.compile(autocast(model, half), *args)(*args)]
    with autocast_scope(half):
        runs.append(model.forward.function(model, *args))
    for found in runs:
        assert np.isfinite(found.numpy()).all()
        if mask == "some":  # else the row is nobody's
            np.testing.assert_allclose(found.numpy(), wanted, atol=0.1)
            assert (found.numpy()[:, [1, 3, 4]] == 0).all()


class Attending(Model):
    @trace
    def forward(self, query: Any, key: Any, value: Any, mask: Any) -> Any:
        return op.fused_attention(query, key, value, mask)[0]


@pytest.mark.usefixtures("torch_kernels")
@pytest.mark.parametrize("half", HALVES)
def test_masks_of_attention_stay_finite(half: str) -> None:
    torch.manual_seed(0)
    heads = [meta.array(torch.randn(2, 2, 4, 8) * 3) for _ in range(3)]
    mask = torch.zeros(2, 1, 4, 4)
    mask[0, 0, 1] = LOW  # a row of padding
    mask[1, 0, :, 3] = LOW
    mask[1, 0, 2] = -torch.inf  # a row that sees nothing: attention makes it 0
    model, given = Attending(), (*heads, meta.array(mask))
    wanted = model(*given).torch()
    runs = [autocast(model, half)(*given)]
    with autocast_scope(half):
        runs.append(model.forward.function(model, *given).to(dtype="float32"))
    for found in runs:
        assert found.torch().isfinite().all()
        assert (found.torch()[1, :, 2] == 0).all()
        seen = torch.ones(2, 2, 4, 1, dtype=torch.bool)
        seen[0, :, 1] = False
        torch.testing.assert_close(found.torch() * seen, wanted * seen, atol=0.1, rtol=0.05)


@pytest.mark.usefixtures("torch_kernels")
def test_the_report_says_which_number_does_not_fit() -> None:
    args = meta.array(torch.randn(3, 4)), meta.array(MASKS["some"])
    assert "-1000000000.0 would be infinite in float16" in str(
        autocast(Masked("where"), "float16").explain(*args)
    )
    assert "infinite" not in str(autocast(Masked("where"), "bfloat16").explain(*args))


@pytest.mark.usefixtures("torch_kernels")
def test_a_trained_bias_is_cast_without_further_ado() -> None:
    model, x = meta.model.Linear(4, 5), meta.array(torch.randn(3, 4))

    class Inside(Model):
        def build(self) -> None:
            self.inner = model

        @trace
        def forward(self, x: Any) -> Any:
            with autocast_scope("float16"):
                first = meta.scan(lambda h, _: (self.inner(x), h), self.inner(x), x)[0]
                return meta.cond(op.less(op.sum(x), 0.0), lambda: self.inner(x), lambda: first)

    for program in (autocast(model, "float16").program(x), Inside().program(x)):
        assert "bias" in str(program.module) and "isinf" not in str(program.module)
