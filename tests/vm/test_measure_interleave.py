"""How a race times its lanes: in turn, until medians are known, within a budget."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import meta
from meta.base.device import CPU
from meta.cost.record import Timing
from meta.dialect import COMPILER, HANDWRITTEN, LIBRARY
from meta.ir import TensorType
from meta.vm.benchmark.interleave import (
    BATCH_LIMIT,
    EARLIEST,
    FEWEST,
    LONGEST_BATCH,
    MOST,
    Lane,
    calls_in_batch,
    interleave,
)
from meta.vm.benchmark.workload import CPU_CACHE, MOST_COPIES, copies_of
from tests.vm.fakes import FakeClock, Fakes

X = TensorType((8, 4), "float32")


@pytest.fixture(autouse=True)
def torch_kernels() -> None:
    """All dialects take part here."""


def lanes(clock: FakeClock, **times: Callable[[int], float]) -> dict[str, Lane]:
    """Return lanes whose n-th batch takes so many microseconds for two calls."""
    made = {}
    for name, of in times.items():
        count = iter(range(1, 1 << 30))

        def call(name: str = name, of: Any = of, count: Any = count) -> None:
            clock.spend(name, of(next(count)) / 2)

        made[name] = Lane(clock.batch([call, lambda: None]), 1)
    return made


def test_lanes_take_turns_and_each_is_first_sometimes() -> None:
    clock = FakeClock()
    three = lanes(clock, a=lambda n: 2.0, b=lambda n: 3.0, c=lambda n: 4.0)
    interleave(list(three.values()), clock, rounds=4)
    assert "".join(clock.launched) == "abc" + "bca" + "cab" + "abc"
    assert [len(lane.samples) for lane in three.values()] == [4, 4, 4]


def test_what_is_certain_needs_few_rounds_and_what_is_not_more() -> None:
    clock, noise = FakeClock(), random.Random(1)
    calm = lanes(clock, a=lambda n: 20.0, b=lambda n: 21.0)
    interleave(list(calm.values()), clock)
    assert {len(lane.samples) for lane in calm.values()} == {FEWEST}
    noisy = lanes(clock, a=lambda n: noise.uniform(19, 21), b=lambda n: 21.0)
    interleave(list(noisy.values()), clock)
    counts = {len(lane.samples) for lane in noisy.values()}
    assert len(counts) == 1 and FEWEST < counts.pop() < MOST
    wild = lanes(clock, a=lambda n: noise.uniform(1, 41))
    interleave(list(wild.values()), clock)
    assert len(wild["a"].samples) == MOST


def test_who_is_far_behind_leaves() -> None:
    clock, noise = FakeClock(), random.Random(2)
    of = lanes(clock, fast=lambda n: noise.uniform(8, 12), slow=lambda n: 100.0)
    interleave(list(of.values()), clock)
    assert len(of["slow"].samples) == EARLIEST < len(of["fast"].samples)
    one = lanes(clock, fast=lambda n: 10.0, once=lambda n: 10.0 if n == 2 else 100.0)
    interleave(list(one.values()), clock)
    assert len(one["once"].samples) > EARLIEST, "it was fast once, and may be again"


def test_a_first_outlier_does_not_count_for_much() -> None:
    clock = FakeClock()
    of = lanes(clock, a=lambda n: 1000.0 if n % 10 == 1 else 20.0)
    interleave(list(of.values()), clock)
    found = of["a"].timing()
    assert round(found.median, 6) == 10.0 and round(found.p80, 6) == 10.0


def test_no_round_begins_after_the_deadline() -> None:
    clock = FakeClock()
    of = lanes(clock, a=lambda n: 2e6, b=lambda n: 2e6)
    interleave(list(of.values()), clock, rounds=50, deadline=clock.now() + 5)
    assert {len(lane.samples) for lane in of.values()} == {3}
    interleave(list(of.values()), clock, rounds=50, deadline=clock.now() - 5)
    assert {len(lane.samples) for lane in of.values()} == {4}, "the first one does"


def test_rounds_that_somebody_wants_are_run_however_long_they_take() -> None:
    for rounds, expected in ((12, 12), (None, 7)):
        clock = FakeClock()
        (lane,) = lanes(clock, slow=lambda n: 1e6 * (1 + n % 2)).values()
        interleave([lane], clock, rounds=rounds, patience=5.0)
        assert len(lane.samples) == expected


def test_percentiles() -> None:
    found = Timing.of([5.0, 1.0, 3.0, 2.0, 4.0])
    assert (found.median, found.count) == (3.0, 5)
    assert (found.p20, found.p80) == pytest.approx((1.8, 4.2))
    assert Timing.of([7.0]) == Timing(7.0, 7.0, 7.0, 1)


@pytest.mark.parametrize("copies", [1, 3, 64])
@pytest.mark.parametrize("seconds", [0.0, 1e-6, 5e-5, 1e-3, 0.2, 30.0])
def test_a_batch_is_long_enough_and_not_too_long(copies: int, seconds: float) -> None:
    count = calls_in_batch(seconds, copies, writes=False)
    assert 1 <= count <= max(LONGEST_BATCH + copies, copies)
    if count * seconds <= BATCH_LIMIT / 2:
        assert count % copies == 0, "all copies equally often"
    assert count == 1 or count * seconds <= BATCH_LIMIT
    assert 1 <= calls_in_batch(seconds, copies, writes=True) <= copies


def test_small_arguments_on_the_cpu_have_one_copy() -> None:
    assert copies_of(0, CPU, writes=False) == copies_of(4096, CPU, writes=False) == 1
    assert copies_of(CPU_CACHE, CPU, writes=False) == 2
    assert copies_of(CPU_CACHE // 2, CPU, writes=False) == 4
    assert copies_of(1 << 40, CPU, writes=True) == 1
    assert copies_of(4096, CPU, writes=True) == MOST_COPIES


def test_all_candidates_race_together(fakes: Fakes) -> None:
    launched = fakes.clock.launched

    for name, level in (("fake_a", HANDWRITTEN), ("fake_b", LIBRARY), ("fake_c", COMPILER)):
        fakes.kernel(meta.tanh, name, level + 100, 600.0, torch.tanh)
    with meta.dialect.only("fake_a", "fake_b", "fake_c"):
        meta.measure(meta.tanh, X, clock=fakes.clock, iters=4)
    letters = "".join(name[-1] for name in launched)
    assert letters.endswith("abc" + "bca" + "cab" + "abc")


def test_nothing_is_kept(fakes: Fakes) -> None:
    made: list[Any] = []

    def tanh(x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x)
        made.extend((weakref.ref(x), weakref.ref(y)))
        return y

    fakes.kernel(meta.tanh, "fake_a", HANDWRITTEN + 100, 5.0, tanh)
    fakes.kernel(meta.tanh, "fake_b", LIBRARY + 100, 5.0, tanh)
    given = meta.array(torch.ones(8, 4))
    gc.collect()
    gc.disable()
    try:
        with meta.dialect.only("fake_a", "fake_b"):
            costs = meta.measure(meta.tanh, given, clock=fakes.clock, iters=5)
    finally:
        gc.enable()
    assert len(costs) >= 2 and len(made) > 20
    assert not [r for r in made if r() is not None], "a tensor of the race lives on"
