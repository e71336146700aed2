"""Operators that draw numbers: their types, their distributions, the stream of `meta.random`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meta
from meta.frontend import from_onnx
from tests.frontend.onnx.records import OnnxCase, calls

COUNT = 20000
LIKE = np.zeros((COUNT // 4, 4), np.float32)
P = np.linspace(0, 1, COUNT, dtype=np.float64)
LOGITS = np.log(np.float32([[0.1, 0.2, 0.7], [0.5, 0.5, 1e-9]]))
SHAPE = [COUNT // 4, 4]


def model(case: OnnxCase) -> Any:
    return from_onnx(case.model())


def run(case: OnnxCase) -> Any:
    meta.random.seed(3)
    with meta.dialect.prefer("torch"):
        return model(case)(*map(meta.array, case.inputs)).numpy()


CASES = [
    (calls("RandomNormal", shape=SHAPE, mean=2.0, scale=0.5), "float32", 2.0, 0.5),
    (calls("RandomNormal", shape=SHAPE, dtype=11, mean=2.0), "float64", 2.0, 1.0),
    (calls("RandomNormalLike", LIKE, mean=-1.0), "float32", -1.0, 1.0),
    (calls("RandomNormalLike", LIKE, dtype=10), "float16", 0.0, 1.0),
    (calls("RandomUniform", shape=SHAPE, low=2.0, high=4.0), "float32", 3.0, 12**-0.5 * 2),
    (calls("RandomUniformLike", LIKE, dtype=11), "float64", 0.5, 12**-0.5),
]


@pytest.mark.parametrize("cases,dtype,mean,spread", CASES)
def test_distributions(cases: list[OnnxCase], dtype: str, mean: float, spread: float) -> None:
    (case,) = cases
    found = run(case)
    assert found.shape == tuple(SHAPE) and found.dtype == dtype
    wide = found.astype(np.float64)
    assert abs(wide.mean() - mean) < 0.03 * max(spread, 1)
    assert abs(wide.std() - spread) < 0.03 * spread


def test_bernoulli() -> None:
    for dtype, wanted in ((None, "float64"), (9, "bool"), (7, "int64")):
        options = {} if dtype is None else {"dtype": dtype}
        found = run(calls("Bernoulli", P, opsets=(22,), **options)[0])
        assert found.dtype == wanted and set(np.unique(found)) <= {0, 1}
        parts = found.reshape(10, -1).mean(1)
        np.testing.assert_allclose(parts, P.reshape(10, -1).mean(1), atol=0.05)


def test_multinomial() -> None:
    found = run(calls("Multinomial", LOGITS, opsets=(22,), sample_size=COUNT, dtype=7)[0])
    assert found.shape == (2, COUNT) and found.dtype == np.int64
    shares = np.stack([np.bincount(row, minlength=3) / COUNT for row in found])
    np.testing.assert_allclose(shares, np.exp(LOGITS) / np.exp(LOGITS).sum(1)[:, None], atol=0.02)


def test_runs_draw_anew_and_a_seed_repeats_them() -> None:
    case = calls("RandomUniform", shape=[3, 4])[0]
    executable = meta.vm.compile(model(case))
    meta.random.seed(5)
    one, other = executable().numpy(), executable().numpy()
    assert not np.array_equal(one, other)
    meta.random.seed(5)
    np.testing.assert_array_equal(executable().numpy(), one)


def test_dropout_of_a_model_in_train_mode() -> None:
    ones = np.ones((50, 40), np.float32)
    trained = model(calls("Dropout", ones, opsets=(10,), ratio=0.25)[0])
    np.testing.assert_array_equal(trained(meta.array(ones)).numpy(), ones)
    trained.train()
    y = trained(meta.array(ones)).numpy()
    np.testing.assert_allclose(y[y != 0], 1 / 0.75, rtol=1e-6)
    assert abs((y == 0).mean() - 0.25) < 0.05
