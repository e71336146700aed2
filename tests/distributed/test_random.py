"""Random numbers on a mesh: dropout differs along "dp", is alike along "tp", and follows from the
seed; the first rank draws what a process alone draws.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meta
from meta import distributed as dist
from meta.model import Dropout
from meta.optim import with_sgd

GRID = {"dp": 2, "tp": 2}


def draws() -> list[float]:
    return meta.random.normal((3,)).numpy().tolist()


def mask(executor: str = "eager") -> Any:
    """Return what dropout leaves of ones, in one of three executors."""
    layer, x = Dropout(0.5), meta.ones((64,))
    if executor == "compiled":
        return meta.vm.compile(layer, x)(x).numpy()
    if executor == "interpreted":
        return meta.model.trace(lambda x: layer(x))(x).numpy()
    return layer(x).numpy()


@pytest.mark.parametrize("executor", ["eager", "interpreted", "compiled"])
def test_dropout_on_a_grid(executor: str) -> None:
    meta.random.seed(3)
    found = dist.simulate(GRID).run(mask, executor)
    meta.random.seed(3)
    alone = mask(executor)
    np.testing.assert_array_equal(found[0], alone)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[2], found[3])
    assert 10 < (found[0] != found[2]).sum() < 54


def test_alike_along_other_axes() -> None:
    meta.random.seed(0)
    for alike, wanted in (("dp", [0, 1, 0, 1]), ((), [0, 1, 2, 3]), (("dp", "tp"), [0] * 4)):
        found = dist.simulate(GRID, alike).run(draws)
        first = list(dict.fromkeys(map(tuple, found)))
        assert [first.index(tuple(one)) for one in found] == wanted


def test_all_ranks_go_on_from_one_state() -> None:
    """Seed and counter are those of all ranks, and afterwards those of the process."""

    def rank() -> Any:
        before = draws()
        state = meta.random.default.state()
        meta.random.seed(8)
        return before, state, draws()

    meta.random.seed(3)
    draws()
    found = dist.simulate(3).run(rank)
    assert len({state for _, state, _ in found}) == 1
    assert draws() != found[0][2]
    meta.random.seed(3)
    draws()
    assert draws() == found[0][0]
    meta.random.seed(8)
    assert draws() == found[0][2]
    assert len({tuple(one) for _, _, one in found}) == 3


def test_an_error_leaves_the_state() -> None:
    meta.random.seed(5)
    before = meta.random.default.state()

    def rank() -> None:
        draws()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        dist.simulate(2).run(rank)
    assert meta.random.default.state() == before


class Dropped(meta.Model):
    """A layer behind dropout, in float64."""

    def build(self) -> None:
        self.drop, self.layer = Dropout(0.5), meta.model.Linear(6, 1)
        self.to(dtype="float64")

    @meta.model.trace
    def forward(self, x: Any) -> Any:
        """Return the mean square."""
        y = self.layer(self.drop(x))
        return (y * y).mean()


@pytest.mark.parametrize("compiled", [False, True], ids=["interpreted", "compiled"])
def test_a_step_with_dropout_is_the_mean_of_the_ranks(compiled: bool) -> None:
    """Its gradient is the mean of those of each rank alone, with the rank's own masks."""
    x = np.random.default_rng(0).standard_normal((2, 4, 6))
    weight = meta.array(np.random.default_rng(1).standard_normal((1, 6)))

    def change(over: str | None) -> Any:
        net = Dropped()
        net.layer.weight.update(weight)
        net.layer.bias.update(meta.zeros(1, "float64"))
        step: Any = with_sgd(1.0, over=over)(net)
        meta.random.seed(11)
        given = meta.array(1.0, "float64"), meta.array(x[dist.rank("dp")])
        (meta.vm.compile(step, *given) if compiled else step)(*given)
        return net.layer.weight.numpy() - weight.numpy()

    alone, together = (dist.simulate(GRID).run(change, over) for over in (None, "dp"))
    assert np.abs(alone[0] - alone[2]).max() > 1e-3
    for found in together:
        np.testing.assert_allclose(found, (alone[0] + alone[2]) / 2, 1e-12)
