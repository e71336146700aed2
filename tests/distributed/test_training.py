"""Data parallel training equals training on one rank with the joined batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meta
from meta import distributed as dist
from meta.base.errors import ArgumentError, DistributedError
from meta.optim import with_sgd
from tests.distributed.training import MAKERS, trained


@pytest.mark.product
@pytest.mark.parametrize("compiled", [False, True], ids=["interpreted", "compiled"])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("name", MAKERS)
def test_ranks_train_as_one(name: str, count: int, compiled: bool) -> None:
    alone = trained(name, compiled)
    found = dist.simulate(count).run(trained, name, compiled, "dp")
    for state in found:
        assert state.keys() == alone.keys()
        for key, value in state.items():
            np.testing.assert_allclose(value, alone[key], 1e-10, 1e-13, err_msg=key)
            np.testing.assert_array_equal(value, found[0][key], err_msg=key)


def test_an_overflow_on_one_rank_is_one_on_all() -> None:
    def rank() -> Any:
        layer = meta.model.Linear(2, 1)
        step = with_sgd(0.1, loss_scale=meta.optim.DynamicLossScale(init=8.0), over="dp")(layer)
        before = layer.weight.numpy()
        x = meta.full((1, 2), float("inf") if dist.rank("dp") else 1.0)
        step(meta.ones((1, 1)), x)
        return step.loss_scale.scale.item(), (layer.weight.numpy() == before).all()

    assert dist.simulate(2).run(rank) == [(4.0, True)] * 2


def test_gradients_in_another_dtype() -> None:
    """A sum of halves that has no half is one of float32."""

    def rank(reduce_dtype: str | None) -> Any:
        layer = meta.model.Linear(1, 1, bias=False)
        layer.to(dtype="float16")
        layer.weight.update(meta.zeros((1, 1), "float16"))
        options = {"over": "dp", "reduce_dtype": reduce_dtype, "master_weights": False}
        step = with_sgd(1.0, **options)(layer)
        step(meta.ones((1, 1), "float16"), meta.full((1, 1), 40000.0, "float16"))
        return layer.weight.numpy().item()

    assert dist.simulate(2).run(rank, "float32") == [-40000.0] * 2
    assert dist.simulate(2).run(rank, None) == [-np.inf] * 2


def test_each_rank_has_its_random_numbers() -> None:
    def draws() -> Any:
        return meta.random.normal((3,)).numpy().tolist()

    meta.random.seed(3)
    first, after = dist.simulate(3).run(draws), draws()
    meta.random.seed(3)
    assert dist.simulate(3).run(draws) == first and draws() == after
    assert len({tuple(one) for one in first}) == 3


def test_errors() -> None:
    with pytest.raises(DistributedError, match="no axis 'dp'"):
        with_sgd(0.1, over="dp")(meta.model.Linear(2, 1))
    with pytest.raises(ArgumentError, match="reduce_dtype does not fit"):
        with_sgd(0.1, reduce_dtype="float32")
    with pytest.raises(ArgumentError, match="reduce_dtype does not fit"):
        with_sgd(0.1, over="dp", reduce_dtype="int8")
