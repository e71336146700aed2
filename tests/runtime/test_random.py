"""`meta.random`: reproducible, independent of threads, with the right moments and dtypes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta import random
from meta.base.errors import ArgumentError, DeviceError
from meta.runtime.random import Generator

N = 20_000


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    state = random.default.state()
    random.seed(1)
    yield
    random.default.load_state(state)


DRAWS = [
    lambda: random.normal((50,)),
    lambda: random.uniform((50,)),
    lambda: random.randint((50,), low=0, high=1000),
    lambda: random.permutation(50),
    lambda: random.exponential((50,)),
    lambda: random.gumbel((50,)),
    lambda: random.bernoulli(np.full(50, 0.5, "f")),
    lambda: random.multinomial(np.ones(50, "f"), 50),
    lambda: random.multinomial(np.ones(50, "f"), 50, replacement=True),
]


@pytest.mark.parametrize("draw", DRAWS)
def test_the_seed_decides(draw: Any) -> None:
    first, second = draw().numpy(), draw().numpy()
    assert (first != second).any()
    random.seed(1)
    assert (draw().numpy() == first).all()
    random.seed(2)
    assert (draw().numpy() != first).any()


@pytest.mark.parametrize("draw", DRAWS)
def test_state(draw: Any) -> None:
    draw()
    state = random.default.state()
    expected = draw().numpy()
    random.seed(77)
    random.default.load_state(state)
    assert (draw().numpy() == expected).all()
    assert random.default.state() == (state[0], state[1] + 1)


def test_keys() -> None:
    keys = [Generator(seed).key() for seed in (0, 1, -2, 2**63 - 1, 2**70 + 5)]
    assert len(set(keys)) == len(keys) and all(0 <= k < 2**63 for k in keys)
    assert Generator(2**63 + 3).key() == Generator(3).key(), "the low 63 bits count"
    for wrong in (True, 1.0, "1", None):
        with pytest.raises(ArgumentError, match="a seed must be an int"):
            Generator(wrong)  # type: ignore[arg-type]


def test_threads_never_draw_the_same_key() -> None:
    generator = Generator(3)
    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(lambda _: [generator.key() for _ in range(500)], range(8)))
    drawn = {key for part in keys for key in part}
    assert len(drawn) == 4000 and generator.state() == (3, 4000)
    alone = Generator(3)
    assert drawn == {alone.key() for _ in range(4000)}


def test_operators_draw_from_it() -> None:
    x = random.normal((100,))
    state = random.default.state()
    first = meta.op.torch.dropout_train(x)[1].numpy()
    assert random.default.state() != state
    random.default.load_state(state)
    assert (meta.op.torch.dropout_train(x)[1].numpy() == first).all()


def test_normal() -> None:
    values = random.normal((N,), mean=3.0, std=2.0).numpy()
    assert values.dtype == np.float32
    assert abs(values.mean() - 3) < 0.1 and abs(values.std() - 2) < 0.1
    assert abs(((values - 3) ** 3).mean()) < 0.5, "symmetric"


def test_uniform() -> None:
    values = random.uniform((N,), low=-1.0, high=3.0).numpy()
    assert values.min() >= -1 and values.max() < 3
    assert abs(values.mean() - 1) < 0.1 and abs(values.std() - 4 / 12**0.5) < 0.1


def test_randint() -> None:
    values = random.randint((N,), low=-2, high=3).numpy()
    assert values.dtype == np.int64 and set(values) == {-2, -1, 0, 1, 2}
    assert all(abs((values == k).mean() - 0.2) < 0.02 for k in range(-2, 3))


def test_permutation() -> None:
    values = random.permutation(100)
    assert values.dtype == "int64" and sorted(values.numpy()) == list(range(100))
    assert list(values.numpy()) != list(range(100))
    assert random.permutation(0).shape == (0,)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_dtypes(dtype: str) -> None:
    draws: tuple[Any, ...] = random.normal, random.uniform, random.exponential, random.gumbel
    for draw in draws:
        found = draw((3, 4), dtype=dtype)
        assert (found.dtype, found.shape, found.device) == (dtype, (3, 4), "cpu")
    if dtype == "float64":
        return
    random.seed(9)
    exact = random.normal((5,)).numpy()
    random.seed(9)
    rounded = random.normal((5,), dtype=dtype).numpy().astype("f8")
    np.testing.assert_allclose(rounded, exact, rtol=2**-7)


def test_integer_dtypes_and_shapes() -> None:
    assert random.randint((2,), low=0, high=5, dtype="int8").dtype == "int8"
    assert random.normal(()).shape == () and random.uniform((0, 2)).shape == (0, 2)


def test_errors() -> None:
    with pytest.raises(DeviceError):
        random.normal((2,), device="cuda:77")
    with pytest.raises(ArgumentError, match="unknown dtype"):
        random.uniform((2,), dtype="flaot32")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_uniform_stays_below_its_bound(dtype: str) -> None:
    for low, high in ((0.0, 1.0), (-3.0, -2.0), (1024.0, 1032.0), (-1.0, 0.0)):
        values = random.uniform((N,), low=low, high=high, dtype=dtype).numpy().astype("f8")
        assert low <= values.min() and values.max() < high
    assert random.uniform((2,), low=1.0, high=1.0, dtype=dtype).numpy().tolist() == [1, 1]


@pytest.mark.parametrize(
    "draw",
    [
        lambda: random.normal((2,), std=-1.0),
        lambda: random.uniform((2,), low=3.0, high=1.0),
        lambda: random.randint((2,), low=5, high=5),
        lambda: random.randint((2,), low=0.5, high=3),
        lambda: random.randint((2,), low=0, high=300, dtype="int8"),
        lambda: random.normal((-1,)),
        lambda: random.normal((2.0,)),
        lambda: random.permutation(-1),
        # NumPy's order, by position.
        lambda: random.normal(0, 1, 3),
        lambda: random.uniform(0.0, 1.0),
        lambda: random.exponential(1.0, 3),
        lambda: random.gumbel(0, 1, 3),
        lambda: random.randint(2, 3, 5),
        *(
            (lambda p=p: random.bernoulli(meta.array(p)))
            for p in ([1.5, 0.5], [-0.5, 0.5], [math.nan, 0.5], [math.inf])
        ),
        *(
            (lambda p=p, r=r: random.multinomial(meta.array(p), 1, r))
            for p in ([-1.0, 2, 1], [math.nan, 2], [0.0, 0], [math.inf, 1], [[1.0, 1], [0, 0]])
            for r in (True, False)
        ),
    ],
)
def test_wrong_arguments(draw: Any) -> None:
    with pytest.raises(ArgumentError) as caught:
        draw()
    assert caught.value.span is not None and caught.value.span.file == __file__


@pytest.mark.parametrize("replacement", [True, False])
def test_impossible_weights_in_a_program(replacement: bool) -> None:
    """Nobody looks at them there; what is drawn are indices all the same."""
    program = meta.model.trace(lambda p: random.multinomial(p, 1, replacement))
    for p in ([0.0, 0.0], [math.nan, 1.0], [-1.0, -1.0]):
        x = meta.array(p)
        assert meta.vm.compile(program, x)(x).tolist() in ([0], [1])


def distance(values: np.ndarray[Any, Any], cumulative: Any) -> float:
    """Return Kolmogorov and Smirnov's distance between samples and a distribution."""
    x = np.sort(values.astype("f8").ravel())
    expected, n = cumulative(x), len(x)
    above, below = np.arange(1, n + 1) / n - expected, expected - np.arange(n) / n
    return float(max(above.max(), below.max()))


def bell(x: Any) -> Any:
    return 0.5 * (1 + np.vectorize(math.erf)(x / 2**0.5))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("draw", "cumulative"),
    [
        (random.normal, bell),
        (random.uniform, lambda x: x),
        (random.exponential, lambda x: 1 - np.exp(-x)),
        (random.gumbel, lambda x: np.exp(-np.exp(-x))),
    ],
)
def test_distributions(draw: Any, cumulative: Any, dtype: str) -> None:
    values = draw((N,), dtype=dtype).numpy()
    assert distance(values, cumulative) < 1.95 / N**0.5, "with a probability of 0.001 by chance"
    pairs = np.corrcoef(values[:-1], values[1:])[0, 1]
    assert abs(pairs) < 4 / N**0.5


def test_weights() -> None:
    p = np.array([[0.1, 0.0, 0.3, 0.6], [5.0, 5.0, 0.0, 0.0]], "f")
    drawn = random.multinomial(p, N, replacement=True).numpy()
    for row, weights in zip(drawn, p / p.sum(1, keepdims=True), strict=True):
        found = np.bincount(row, minlength=4) / N
        assert (np.abs(found - weights) < 0.02).all() and (found[weights == 0] == 0).all()
    first = random.multinomial(np.tile(p[:1], (N, 1)), 3).numpy()
    assert (np.sort(first, 1) == [0, 2, 3]).all(), "each once, and none of weight 0"
    assert (np.abs(np.bincount(first[:, 0], minlength=4) / N - p[0]) < 0.02).all()
    ones = random.bernoulli(np.tile(np.array([0, 0.25, 1], "f"), (N, 1))).numpy()
    assert ones.dtype == np.float32 and set(ones.ravel()) == {0, 1}
    assert ones[:, 0].max() == 0 and ones[:, 2].min() == 1 and abs(ones[:, 1].mean() - 0.25) < 0.02


def test_wide_integers() -> None:
    values = random.randint((N,), low=-(2**63), high=2**63).numpy() / 2**63
    assert abs(values.mean()) < 0.02 and abs(values.std() - 3**-0.5) < 0.01
    many = random.randint((N,), low=0, high=3 * 2**61).numpy()
    assert abs((many < 2**61).mean() - 1 / 3) < 0.02


def test_permuted_rows() -> None:
    x = np.arange(60).reshape(20, 3)
    found = random.permutation(meta.array(x)).numpy()
    assert (found != x).any() and (found[found[:, 0].argsort()] == x).all()


@pytest.mark.parametrize("count", [0, 1, 40_000])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_arrays_are_computed_by_parts(dtype: str, count: int) -> None:
    """The values are those of all at once, of the uniform numbers of the same key."""
    state = random.default.state()
    u = random.uniform(count, dtype=dtype).torch()
    least = 2.0**-25 if dtype == "float32" else 2.0**-54
    random.default.load_state(state)
    expected = (1.0 - u).log().neg().clamp(min=least)
    assert torch.equal(random.exponential(count, dtype=dtype).torch(), expected)
    weights = u.flip(0)
    for kind in (None, "bool", "int8", "float16"):
        random.default.load_state(state)
        found = random.bernoulli(meta.array(weights), dtype=kind)
        assert torch.equal(found.torch(), (u < weights).to(found.torch().dtype))
    random.default.load_state(state)
    strided = meta.from_dlpack(torch.stack([weights, weights], 1)[:, 0])
    assert torch.equal(random.bernoulli(strided).torch(), (u < weights).to(u.dtype))
