"""Collectives among simulated ranks: results beside NumPy's, gradients beside central differences,
eagerly and compiled, and what happens to ranks that do not go on together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meta
from meta import distributed as dist
from meta.base.errors import ArgumentError, DistributedError

Ranks = np.ndarray[Any, Any]
CALLS: dict[str, tuple[Callable[..., Any], Callable[[Ranks], Any]]] = {
    "all_reduce": (lambda x: dist.all_reduce(x, "dp"), lambda v: [v.sum(0)] * len(v)),
    "mean": (lambda x: dist.all_reduce(x, "dp", "mean"), lambda v: [v.mean(0)] * len(v)),
    "max": (lambda x: dist.all_reduce(x, "dp", "max"), lambda v: [v.max(0)] * len(v)),
    "min": (lambda x: dist.all_reduce(x, "dp", "min"), lambda v: [v.min(0)] * len(v)),
    "all_gather": (
        lambda x: dist.all_gather(x, "dp", 1),
        lambda v: [np.concatenate(list(v), 1)] * len(v),
    ),
    "reduce_scatter": (
        lambda x: dist.reduce_scatter(x, "dp"),
        lambda v: np.split(v.sum(0), len(v), 0),
    ),
    "reduce_scatter along the last axis": (
        lambda x: dist.reduce_scatter(x, "dp", "mean", -1),
        lambda v: np.split(v.mean(0), len(v), -1),
    ),
    "all_to_all": (
        lambda x: dist.all_to_all(x, "dp", 0, 1),
        lambda v: [
            np.concatenate([np.split(one, len(v), 0)[i] for one in v], 1) for i in range(len(v))
        ],
    ),
    "broadcast": (
        lambda x: dist.broadcast(x, "dp", -1 % dist.size("dp")),
        lambda v: [v[-1]] * len(v),
    ),
    "reduce": (lambda x: dist.reduce(x, "dp", "max"), lambda v: [v.max(0), *0 * v[1:]]),
    "gather": (
        lambda x: dist.gather(x, "dp"),
        lambda v: [np.concatenate(list(v)), *(0 * np.concatenate(list(v)) for _ in v[1:])],
    ),
    "scatter": (lambda x: dist.scatter(x, "dp", 1), lambda v: np.split(v[0], len(v), 1)),
    "send_recv": (
        lambda x: dist.send_recv(
            x, "dp", tuple(range(dist.size("dp") - 1)), tuple(range(1, dist.size("dp")))
        ),
        lambda v: [0 * v[0], *v[:-1]],
    ),
}
"""By name: the call, and what it returns on each rank, given the arguments of all of them."""


def values(count: int, seed: int = 0) -> Ranks:
    return np.random.default_rng(seed).standard_normal((count, 12, 12))


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CALLS)
def test_results(name: str, count: int) -> None:
    call, expected = CALLS[name]
    given = values(count)

    def rank() -> tuple[Any, Any]:
        x = meta.array(given[dist.rank("dp")])
        traced = meta.model.trace(lambda x: call(x))
        return call(x).numpy(), meta.vm.compile(traced, x)(x).numpy()

    for results, wanted in zip(dist.simulate(count).run(rank), expected(given), strict=True):
        for found in results:
            np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.parametrize("name", CALLS)
def test_gradients(name: str) -> None:
    """The gradient of the sum of all ranks' losses, along one random direction."""
    call, expected = CALLS[name]
    given, along = values(3), values(3, 1)

    def weights(shape: tuple[int, ...]) -> Ranks:
        return np.random.default_rng(len(shape)).standard_normal(shape)

    def loss(v: Ranks) -> float:
        return float(sum((y * weights(y.shape)).sum() for y in expected(v)))

    def rank() -> tuple[Any, Any]:
        x = meta.array(given[dist.rank("dp")])
        w = meta.array(weights(tuple(call(x).shape)))

        @meta.model.trace
        def step(x, w):
            return meta.grad.value_and_grad(lambda x: (call(x) * w).sum())(x)

        compiled = meta.vm.compile(step, x, w)(x, w)[1].numpy()
        x.requires_grad = True
        (call(x) * w).sum().backward()
        return x.grad.numpy(), compiled

    numeric = (loss(given + 1e-6 * along) - loss(given - 1e-6 * along)) / 2e-6
    for found in zip(*dist.simulate(3).run(rank), strict=True):
        assert float((np.stack(found) * along).sum()) == pytest.approx(numeric, rel=1e-6)


def test_megatron_pair() -> None:
    """A product by columns and one by rows is the whole product, and so are its gradients."""
    rng = np.random.default_rng(0)
    x, w, v = (rng.standard_normal(shape) for shape in ((5, 8), (8, 12), (12, 8)))

    def rank() -> Any:
        part = slice(4 * dist.rank("tp"), 4 * dist.rank("tp") + 4)
        arrays = [meta.array(one) for one in (x, w[:, part], v[part])]
        for one in arrays:
            one.requires_grad = True
        hidden = meta.tanh(meta.matmul(dist.copy_to(arrays[0], "tp"), arrays[1]))
        y = dist.reduce_from(meta.matmul(hidden, arrays[2]), "tp")
        (y * y).sum().backward()
        return y.numpy(), *(one.grad.numpy() for one in arrays)

    found = dist.simulate({"tp": 3}).run(rank)
    h = np.tanh(x @ w)
    dy = 2 * h @ v
    dh = (dy @ v.T) * (1 - h * h)
    for y, dx, *_ in found:
        np.testing.assert_allclose(y, h @ v, rtol=1e-10)
        np.testing.assert_allclose(dx, dh @ w.T, rtol=1e-10)
    np.testing.assert_allclose(np.concatenate([f[2] for f in found], 1), x.T @ dh, rtol=1e-10)
    np.testing.assert_allclose(np.concatenate([f[3] for f in found]), h.T @ dy, rtol=1e-10)


def test_two_axes() -> None:
    def rank() -> Any:
        place = meta.array(10 * dist.rank("dp") + dist.rank("tp"))
        over_dp, over_tp = (dist.all_gather(place.reshape((1,)), axis) for axis in ("dp", "tp"))
        return (
            over_dp.numpy().tolist(),
            over_tp.numpy().tolist(),
            int(dist.axis_index("tp").numpy()),
        )

    found = dist.simulate({"dp": 2, "tp": 3}).run(rank)
    assert found[4] == ([1, 11], [10, 11, 12], 1)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "float16", "bfloat16", "complex64"])
def test_what_is_moved_has_any_dtype(dtype: str) -> None:
    def rank() -> Any:
        x = meta.array([[dist.rank("dp"), 1]]).astype(dtype)
        return dist.all_gather(x, "dp"), dist.broadcast(x[0, 0], "dp", 1)

    for gathered, sent in dist.simulate(2).run(rank):
        assert str(gathered.dtype) == dtype == str(sent.dtype)
        assert gathered.astype("complex64").numpy().real.tolist() == [[0, 1], [1, 1]]
        assert sent.astype("complex64").numpy() == 1


def ends_early() -> None:
    if dist.rank("dp"):
        dist.all_reduce(meta.ones(2), "dp")


def differs() -> None:
    dist.all_reduce(meta.ones(2 + dist.rank("dp")), "dp")


def crossed() -> None:
    over = ("dp", "tp") if dist.rank("dp") == dist.rank("tp") else ("tp", "dp")
    for axis in over:
        dist.all_reduce(meta.ones(2), axis)


FAULTS = {
    ends_early: r"wait for ever: rank 2 waits in all_reduce\(float32\[2\], sum\).*rank 0 has ended",
    differs: r"place 0: all_reduce\(float32\[2\], sum\), place 1: all_reduce\(float32\[3\], sum\)",
    crossed: "wait for ever: rank 0 waits .* rank 3 waits",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
def test_ranks_that_do_not_go_on_together(fault: Callable[[], None]) -> None:
    with pytest.raises(DistributedError, match=FAULTS[fault]):
        dist.simulate({"dp": 2, "tp": 2}).run(fault)


def test_the_error_of_the_rank_that_failed_is_raised() -> None:
    def rank() -> None:
        if dist.rank("dp") == 2:
            raise ZeroDivisionError("mine")
        dist.all_reduce(meta.ones(2), "dp")

    with pytest.raises(ZeroDivisionError, match="mine"):
        dist.simulate(4).run(rank)


def test_a_program_is_run_by_one_rank_at_a_time() -> None:
    x = meta.ones(2)
    run = meta.vm.compile(meta.model.trace(lambda x: meta.op.all_reduce(x, "dp", 2)), x)
    with pytest.raises(DistributedError, match="run one compiled program at the same time"):
        dist.simulate(2).run(lambda: run(x))


def test_errors() -> None:
    with pytest.raises(DistributedError, match="no axis 'dp'"):
        dist.all_reduce(meta.ones(2), "dp")
    with pytest.raises(DistributedError, match="for 3 ranks along 'dp'"):
        dist.simulate(2).run(lambda: meta.op.all_reduce(meta.ones(2), "dp", 3))
    with pytest.raises(DistributedError, match="did you mean 'dp'"):
        dist.simulate(2).run(lambda: dist.rank("pd"))
    for wrong in ({}, 0, {"dp": 1.5}, {3: 2}):
        with pytest.raises(ArgumentError, match="no axes of a mesh"):
            dist.simulate(wrong)
    with pytest.raises(meta.errors.GradientError, match="product over ranks"):
        x = meta.ones(2)
        x.requires_grad = True
        meta.op.all_reduce(x, "dp", 1, "product").sum().backward()
