"""Initial values: distributions beside those of torch, seeds, errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base.errors import ArgumentError, TraceError
from meta.model import init, parameter

THEIRS = torch.nn.init
SHAPE = (60, 40, 3, 2)
CASES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "uniform": (lambda a: init.uniform(a, -1, 3), lambda t: THEIRS.uniform_(t, -1, 3)),
    "normal": (lambda a: init.normal(a, 2, 0.5), lambda t: THEIRS.normal_(t, 2, 0.5)),
    "truncated_normal": (
        lambda a: init.truncated_normal(a, 0.5, 2.0, -1.0, 3.0),
        lambda t: THEIRS.trunc_normal_(t, 0.5, 2.0, -1.0, 3.0),
    ),
    "xavier_uniform": (lambda a: init.xavier_uniform(a, 2), lambda t: THEIRS.xavier_uniform_(t, 2)),
    "xavier_normal": (init.xavier_normal, THEIRS.xavier_normal_),
    "kaiming_uniform": (
        lambda a: init.kaiming_uniform(a, 0.3),
        lambda t: THEIRS.kaiming_uniform_(t, 0.3),
    ),
    "kaiming_normal": (
        lambda a: init.kaiming_normal(a, mode="fan_out", nonlinearity="relu"),
        lambda t: THEIRS.kaiming_normal_(t, mode="fan_out", nonlinearity="relu"),
    ),
    "orthogonal": (lambda a: init.orthogonal(a, 3), lambda t: THEIRS.orthogonal_(t, 3)),
    "zeros": (init.zeros, THEIRS.zeros_),
    "ones": (init.ones, THEIRS.ones_),
    "constant": (lambda a: init.constant(a, 0.25), lambda t: THEIRS.constant_(t, 0.25)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("name", CASES)
def test_the_distribution_is_that_of_torch(name: str, dtype: str) -> None:
    ours, theirs = CASES[name]
    torch.manual_seed(0)
    wanted = np.sort(theirs(torch.empty(SHAPE)).flatten().numpy())
    meta.random.seed(1)
    array = parameter(meta.zeros(SHAPE, dtype))
    assert ours(array) is array
    assert (array.dtype, array.requires_grad) == (dtype, True)
    found = np.sort(array.numpy().astype("float64").ravel())
    # Quantiles: the distance of the two distribution functions, as by Kolmogorov and Smirnov.
    places = np.searchsorted(wanted, found, "right") / wanted.size
    spread = max(float(wanted.std()), 1e-6)
    assert abs(found.mean() - wanted.mean()) < 0.05 * spread + 1e-6
    assert found.std() == pytest.approx(wanted.std(), rel=0.03, abs=1e-6)
    assert found[0] == pytest.approx(wanted[0], abs=1.5 * spread)
    assert found[-1] == pytest.approx(wanted[-1], abs=1.5 * spread)
    if wanted.std() > 0:
        assert np.abs(places - np.arange(1, found.size + 1) / found.size).max() < 0.03


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 2, 2)])
def test_orthogonal_rows_or_columns(shape: tuple[int, ...]) -> None:
    x = init.orthogonal(meta.zeros(shape, "float64"), 2.0).numpy().reshape(shape[0], -1)
    small = x @ x.T if x.shape[0] <= x.shape[1] else x.T @ x
    np.testing.assert_allclose(small, 4 * np.eye(len(small)), atol=1e-12)


def test_truncation() -> None:
    x = init.truncated_normal(meta.zeros((1000,)), std=3.0, low=-1.0, high=0.5).numpy()
    assert x.min() >= -1
    assert x.max() <= 0.5


def test_eye() -> None:
    x = init.eye(parameter(meta.ones((2, 3))))
    assert x.tolist() == [[1, 0, 0], [0, 1, 0]]


def test_the_seed_reproduces() -> None:
    drawn = []
    for _ in range(2):
        meta.random.seed(5)
        drawn.append([ours(meta.zeros((4, 3))).numpy() for ours, _ in CASES.values()])
    for first, second in zip(*drawn, strict=True):
        assert (first == second).all()


@pytest.mark.parametrize("name", ["linear", "conv2d", "tanh", "relu", "leaky_relu", "selu"])
def test_gain(name: str) -> None:
    assert init.gain(name) == pytest.approx(THEIRS.calculate_gain(name))
    assert init.gain("leaky_relu", 0.5) == pytest.approx(math.sqrt(1.6))


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: init.xavier_uniform(meta.zeros((3,))), ArgumentError, "at least two axes"),
        (lambda: init.orthogonal(meta.zeros(())), ArgumentError, "at least two axes"),
        (lambda: init.eye(meta.zeros((2,))), ArgumentError, "only a matrix"),
        (lambda: init.normal(meta.zeros((2,), "int64")), ArgumentError, "floating point"),
        (lambda: init.kaiming_normal(meta.zeros((2, 2)), mode="fan"), ArgumentError, "fan_out"),
        (lambda: init.gain("swish"), ArgumentError, "tanh"),
        (lambda: init.truncated_normal(meta.zeros((2,)), low=2.0), ArgumentError, "low < high"),
        (
            lambda: init.truncated_normal(meta.zeros((2,)), low=50.0, high=60.0),
            ArgumentError,
            "almost none",
        ),
    ],
)
def test_what_cannot_be(call: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()


def test_traced_code_is_refused() -> None:
    weight = meta.zeros((2, 2))

    @meta.model.trace
    def f(x: Any) -> Any:
        init.ones(weight)
        return x

    with pytest.raises(TraceError):
        f(meta.zeros((2,)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("compact", [True, False])
def test_numbers_are_drawn_into_the_memory_that_there_is(compact: bool, dtype: str) -> None:
    """The bits of an array of its own, and a write that torch counts."""
    tensor = torch.zeros(7, 9, dtype=getattr(torch, dtype))
    array = meta.from_dlpack(tensor if compact else tensor.T)
    for fill, draw, numbers in (
        (init.uniform, meta.random.uniform, {"low": -0.3, "high": 0.2}),
        (init.normal, meta.random.normal, {"mean": 0.5, "std": 2.0}),
    ):
        meta.random.seed(4)
        expected = draw(array.shape, dtype=dtype, **numbers)
        meta.random.seed(4)
        version, address = array.tensor._version, array.tensor.data_ptr()
        assert fill(array, **numbers) is array
        assert array.tensor._version > version and array.tensor.data_ptr() == address
        assert torch.equal(array.torch(), expected.torch())
