"""Training with tables whose gradients are gathered by rows, and with updates beside exchanges: the
arrays of one rank with the joined batch result.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meta
from meta import distributed as dist


class Words(meta.Model):
    """A table of words, which is the weight of the scores, too, if ``tied``."""

    def build(self, tied: bool) -> None:
        self.table = meta.model.Embedding(40, 6)
        self.last = meta.model.Linear(6, 40, bias=False)
        if tied:
            self.last.weight = self.table.weight

    @meta.model.trace
    def forward(self, x: Any) -> Any:
        """Return the loss of predicting each word from itself."""
        scores = self.last(meta.tanh(self.table(x)))
        return meta.cross_entropy(meta.reshape(scores, (-1, 40)), meta.reshape(x, (-1,)))


def trained(
    tied: bool,
    maker: Any,
    rows: slice,
    over: str | None = None,
    config: dict[str, dict[str, Any]] | None = None,
    **options: Any,
) -> Any:
    """Return the arrays after three steps with these rows of each batch, and the kernels."""
    drawn = np.random.default_rng(0)
    net = Words(tied)
    net.to(dtype="float64")
    for array in net.state().values():
        array.update(meta.array(drawn.standard_normal(array.shape), device="cpu"))
    step = maker(over=over, **options)(net)
    batches = [drawn.integers(0, 40, (6, 3)) for _ in range(3)]
    given = [(meta.array(1.0, "float64"), meta.array(x[rows])) for x in batches]
    with meta.PassContext(config=config or {}):
        run = meta.vm.compile(step, *given[0])
    for one in given:
        run(*one)
    return {n: dist.unshard(a).numpy() for n, a in net.state().items()}, run.kernels()


EACH = {
    "bucket_collectives": {"first_mib": 0.0, "bucket_mib": 0.0},
    "schedule_collectives": {"apart_mib": 64.0},
}
"""Each gradient by itself."""
MAKERS = {
    "adamw": lambda **options: meta.optim.with_adamw(1e-2, clip_norm=0.1, **options),
    "accumulated": lambda **options: meta.optim.with_sgd(0.5, 0.9, accumulate=2, **options),
}


@pytest.mark.product
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("count", [2, 3])
def test_steps_are_those_of_one_rank(count: int, name: str, tied: bool) -> None:
    expected, _ = trained(tied, MAKERS[name], slice(0, 6))

    def rank(**options: Any) -> Any:
        each = 6 // count
        own = slice(dist.rank("dp") * each, (dist.rank("dp") + 1) * each)
        return trained(tied, MAKERS[name], own, "dp", **options)

    for options in ({}, {"zero": 1}, {"reduce_dtype": "float64"}, {"config": EACH}):
        found = dist.simulate(count).run(lambda options=options: rank(**options))
        for arrays, kernels in found:
            assert any("all_gather" in kernel for kernel in kernels)
            for key, value in arrays.items():
                np.testing.assert_allclose(value, expected[key], 1e-10, 1e-13, err_msg=key)
                np.testing.assert_array_equal(value, found[0][0][key])
