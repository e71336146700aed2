"""Programs whose collectives run beside other work: on simulated ranks, where what is communicated
is hidden until somebody waits for it, the results are the same, bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta import distributed as dist
from meta import op
from meta.base import config
from meta.base.errors import DistributedError
from meta.dialect import only
from meta.runtime.mesh import current_mesh
from meta.vm import PassContext
from tests.distributed.training import MAKERS, trained

SMALL = {"bucket_collectives": {"first_mib": 0.0, "bucket_mib": 0.0}}
SEVERAL = {"bucket_collectives": {"first_mib": 1e-4, "bucket_mib": 2e-4, "share": 1}}


def same(found: list[Any], expected: list[Any]) -> None:
    for mine, other in zip(found, expected, strict=True):
        assert mine.keys() == other.keys()
        for key, value in mine.items():
            np.testing.assert_array_equal(value, other[key], err_msg=key)


@pytest.mark.product
@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("name", MAKERS)
def test_steps_are_the_same_bit_for_bit(name: str, count: int) -> None:
    """With a bucket for each gradient, so that most are in flight at a time."""
    kernels: list[dict[str, int]] = []

    def rank(*disabled: str) -> Any:
        with PassContext(disabled=disabled, config=SMALL):
            return trained(name, True, "dp", look=lambda run: kernels.append(run.kernels()))

    found = dist.simulate(count).run(rank)
    assert all(one["gloo.multi_tensor_all_reduce_start"] >= 2 for one in kernels)
    assert all(
        one["gloo.multi_tensor_all_reduce_start"] == one["gloo.collective_wait"] for one in kernels
    )
    same(found, dist.simulate(count).run(rank, "schedule_collectives"))


@pytest.mark.product
@pytest.mark.parametrize("limit", [0.0, 1e-4, 1024.0])
@pytest.mark.parametrize("seed", range(4))
def test_random_programs(seed: int, limit: float) -> None:
    """Collectives anywhere in a program, along both axes of a mesh."""
    drawn = np.random.default_rng(seed)
    unary = (op.tanh, op.sin, op.cos, lambda x: op.reshape(x, (-1,)), lambda x: x * 0.5)
    plan = [(int(drawn.integers(9)), [int(i) for i in drawn.integers(0, 99, 3)]) for _ in range(30)]

    def body(x: Any, y: Any) -> Any:
        values = [x, y]
        for kind, (i, j, k) in plan:
            a, b = values[i % len(values)], values[j % len(values)]
            over = ("dp", "tp")[k % 2]
            row = op.reshape(unary[k % 5](a), (-1,))
            if kind < 2:
                values.append(dist.all_reduce(unary[k % 5](a), over, "mean"))
            elif kind == 2:
                values.append(dist.all_gather(row, over)[3:9])
            elif kind == 3:
                values.append(dist.reduce_scatter(op.concat([row, row]), over, "mean"))
            elif kind < 6:
                values.append(op.reshape(a, (-1,)) + op.reshape(b, (-1,)))
            else:
                values.append(unary[k % 5](a))
        return op.sum(op.concat([op.reshape(v, (-1,)) for v in values[2:]])), values[-1]

    def rank() -> Any:
        own = np.random.default_rng(7 * dist.rank("dp") + dist.rank("tp"))
        x, y = (meta.array(own.standard_normal((2, 3))) for _ in range(2))
        options = {
            **(SEVERAL if seed % 2 else SMALL),
            "schedule_collectives": {"in_flight_mib": limit, "apart_mib": 64.0},
        }
        with PassContext(config=options), only("torch", "gloo"):
            run = meta.vm.compile(meta.model.trace(body), x, y)
        return [r.numpy() for r in body(x, y)], [r.numpy() for r in run(x, y)]

    for eager, compiled in dist.simulate({"dp": 2, "tp": 2}).run(rank):
        for one, other in zip(eager, compiled, strict=True):
            np.testing.assert_allclose(one, other, 1e-12)


def test_a_run_that_fails_leaves_nothing_in_flight() -> None:
    """The error is that of the kernel, and the next run is right."""

    def rank() -> Any:
        def body(x: Any, y: Any) -> Any:
            reduced = dist.all_reduce(x * 2.0, "dp")
            return reduced + op.take(y, op.astype(y[0], "int64")), y

        x = meta.array([1.0, 2.0, 3.0])
        with PassContext(disabled=["memory_schedule"]):
            run = meta.vm.compile(meta.model.trace(body), x, x)
        assert run.kernels()["gloo.multi_tensor_all_reduce_start"] == 1
        with pytest.raises(meta.errors.MetaError, match="out of range"):
            run(x, meta.array([9.0, 0.0, 0.0]))
        assert not current_mesh().pending
        return run(x, meta.array([1.0, 5.0, 0.0]))[0].numpy().tolist()

    with only("torch", "gloo"), config.override(META_CHECK_INDICES=True):
        assert dist.simulate(2).run(rank) == [[9.0, 13.0, 17.0]] * 2


def test_what_is_communicated_is_hidden() -> None:
    """Who reads it too early gets NaN, and who writes it is found out."""

    def reads() -> Any:
        x = meta.array([1.0, 2.0])
        op.multi_tensor_all_reduce_start([x], "dp", 2)
        early = x.numpy().copy()
        op.collective_wait([x], "dp", 2)
        return early, x.numpy()

    for early, late in dist.simulate(2).run(reads):
        assert np.isnan(early).all() and late.tolist() == [2.0, 4.0]

    def writes() -> None:
        x = meta.array([1.0, 2.0])
        op.multi_tensor_all_reduce_start([x], "dp", 2)
        x.torch()[0] = torch.tensor(3.0)
        op.collective_wait([x], "dp", 2)

    with pytest.raises(DistributedError, match="written while it was communicated"):
        dist.simulate(2).run(writes)


def test_tensors_apart_are_copied_and_empty_ones_left_out() -> None:
    def rank() -> Any:
        here = dist.rank("dp") + 1.0
        parts = [meta.full((n,), here * (n + 1)) for n in (3, 0, 1, 5)]
        op.multi_tensor_all_reduce(parts, "dp", 2, "mean")
        op.multi_tensor_all_reduce([parts[1]], "dp", 2)
        op.multi_tensor_all_reduce_start([parts[1]], "dp", 2)
        op.collective_wait([parts[1]], "dp", 2)
        whole = meta.full((20,), here)
        torch_views = [meta.from_dlpack(whole.torch()[a:b]) for a, b in ((0, 3), (16, 19))]
        op.multi_tensor_all_reduce(torch_views, "dp", 2)
        return [p.numpy().tolist() for p in parts], whole.numpy().tolist()

    for place, (parts, whole) in enumerate(dist.simulate(2).run(rank)):
        assert parts == [[6.0] * 3, [], [3.0], [9.0] * 5]
        assert whole == [3.0] * 3 + [place + 1.0] * 13 + [3.0] * 3 + [place + 1.0]
