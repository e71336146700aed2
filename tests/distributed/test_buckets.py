"""Programs whose collectives are put into buckets: the same results, bit for bit, and no copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meta
from meta import distributed as dist
from meta import op
from meta.dialect import only
from meta.dialect.collective import kernels
from meta.vm import PassContext
from tests.distributed.training import MAKERS, trained


@pytest.mark.product
@pytest.mark.parametrize("count", [1, 2, pytest.param(3, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("name", MAKERS)
def test_steps_are_the_same_bit_for_bit(
    name: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one collective, of a range of the arena, for all gradients."""
    looked: list[bool] = []
    rows = kernels.rows

    def look(tensors: Any, align: int) -> Any:
        found = rows(tensors, align)
        looked.append(len(found) == 1 and len(tensors) == 4)
        return found

    monkeypatch.setattr(kernels, "rows", look)
    found = dist.simulate(count).run(trained, name, True, "dp")
    assert all(looked) and len(looked) == (4 * count if count > 1 else 0)

    def alone() -> Any:
        with PassContext(disabled=["bucket_collectives"]):
            return trained(name, True, "dp")

    for mine, expected in zip(found, dist.simulate(count).run(alone), strict=True):
        for key, value in mine.items():
            np.testing.assert_array_equal(value, expected[key], err_msg=key)


@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed: int) -> None:
    """Collectives anywhere in a program: eagerly, and compiled."""
    drawn = np.random.default_rng(seed)
    unary = (op.tanh, op.sin, op.cos, lambda x: op.reshape(x, (-1,)), lambda x: x)
    plan = [(int(drawn.integers(9)), [int(i) for i in drawn.integers(0, 99, 3)]) for _ in range(24)]

    def body(x: Any, y: Any) -> Any:
        values = [x, y]
        for kind, (i, j, k) in plan:
            a, b = values[i % len(values)], values[j % len(values)]
            over, row = ("dp", "tp")[k % 2], op.reshape(a, (-1,))
            if kind < 2:
                reduction = ("sum", "mean", "max")[k % 3]
                values.append(dist.all_reduce(a, over, reduction))
            elif kind == 2:
                values.append(dist.all_gather(row, over)[3:9])
            elif kind == 3:
                values.append(dist.reduce_scatter(op.concat([row, row]), over, "mean"))
            elif kind < 6:
                values.append(op.astype(op.astype(unary[k % 5](a), "float32"), "float64"))
            elif kind < 7:
                values.append(op.reshape(a, (-1,)) + op.reshape(b, (-1,)))
            else:
                values.append(unary[k % 5](a))
        return values[-1], values[-3], op.sum(op.reshape(values[-5], (-1,)))

    def rank() -> Any:
        own = np.random.default_rng(7 * dist.rank("dp") + dist.rank("tp"))
        x, y = (meta.array(own.standard_normal((2, 3))) for _ in range(2))
        with only("torch", "gloo"), PassContext(config={"bucket_collectives": {"share": 1}}):
            run = meta.vm.compile(meta.model.trace(body), x, y)
        return [r.numpy() for r in body(x, y)], [r.numpy() for r in run(x, y)]

    for eager, compiled in dist.simulate({"dp": 2, "tp": 2}).run(rank):
        for one, other in zip(eager, compiled, strict=True):
            np.testing.assert_allclose(one, other, 1e-12)
