"""Learning-rate schedules agree with torch's, and with what their names say."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

from meta.base.errors import ArgumentError
from meta.optim.schedule import (
    Schedule,
    constant,
    cosine,
    cosine_restarts,
    exponential_decay,
    linear_decay,
    linear_warmup,
    multi_step_decay,
    one_cycle,
    polynomial_decay,
    step_decay,
)

BASE = 0.3


def of_torch(make: Callable[[Any], Any], steps: int) -> list[float]:
    """Return the learning rates of ``steps`` steps under a scheduler of torch."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=BASE)
    scheduler = make(optimizer)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def warmup_and_cosine(optimizer: Any) -> Any:
    parts = [
        lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=5),
        lr_scheduler.CosineAnnealingLR(optimizer, T_max=20, eta_min=0.0),
    ]
    return lr_scheduler.SequentialLR(optimizer, parts, milestones=[5])


CASES = {
    "constant": (constant(0.5), lambda o: lr_scheduler.LambdaLR(o, lambda _: 0.5)),
    "constant, then 1": (
        constant(0.25, steps=4).then(constant()),
        lambda o: lr_scheduler.ConstantLR(o, factor=0.25, total_iters=4),
    ),
    "linear_warmup": (
        linear_warmup(7, start=0.1),
        lambda o: lr_scheduler.LinearLR(o, start_factor=0.1, total_iters=7),
    ),
    "linear_decay": (
        linear_decay(9, end=0.2),
        lambda o: lr_scheduler.LinearLR(o, start_factor=1.0, end_factor=0.2, total_iters=9),
    ),
    "cosine": (
        # torch's goes up again behind T_max, so only until there.
        cosine(30, end=0.1),
        lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=30, eta_min=0.1 * BASE),
    ),
    "step_decay": (
        step_decay(4, gamma=0.5),
        lambda o: lr_scheduler.StepLR(o, step_size=4, gamma=0.5),
    ),
    "multi_step_decay": (
        multi_step_decay([3, 10, 10, 17], gamma=0.3),
        lambda o: lr_scheduler.MultiStepLR(o, milestones=[3, 10, 10, 17], gamma=0.3),
    ),
    "exponential_decay": (
        exponential_decay(0.9),
        lambda o: lr_scheduler.ExponentialLR(o, gamma=0.9),
    ),
    "polynomial_decay": (
        polynomial_decay(20, power=1.7),
        lambda o: lr_scheduler.PolynomialLR(o, total_iters=20, power=1.7),
    ),
    "cosine_restarts": (
        cosine_restarts(7, end=0.1),
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=7, eta_min=0.1 * BASE),
    ),
    "cosine_restarts that grow": (
        cosine_restarts(4, growth=2),
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=4, T_mult=2),
    ),
    "one_cycle": (
        one_cycle(30),
        lambda o: lr_scheduler.OneCycleLR(o, max_lr=BASE, total_steps=30),
    ),
    "one_cycle along lines": (
        one_cycle(30, warmup=0.25, start=0.1, end=0.001, linear=True),
        lambda o: lr_scheduler.OneCycleLR(
            *(o, BASE, 30),
            pct_start=0.25,
            anneal_strategy="linear",
            div_factor=10,
            final_div_factor=100,
        ),
    ),
    "one_cycle in three phases": (
        one_cycle(30, warmup=0.4, three_phases=True),
        lambda o: lr_scheduler.OneCycleLR(o, BASE, 30, pct_start=0.4, three_phase=True),
    ),
    "one_cycle, warm-up of no step": (
        one_cycle(30, warmup=1 / 30),
        lambda o: lr_scheduler.LambdaLR(
            o,
            lambda i: 1 / 250_000 + (1 - 1 / 250_000) * (1 + math.cos(math.pi * i / 29)) / 2,
        ),
    ),
    "warm-up, then cosine": (linear_warmup(5, start=0.1).then(cosine(20)), warmup_and_cosine),
    "product": (
        linear_warmup(5, start=0.5) * step_decay(3, gamma=0.5),
        lambda o: lr_scheduler.ChainedScheduler(
            [
                lr_scheduler.LinearLR(o, start_factor=0.5, total_iters=5),
                lr_scheduler.StepLR(o, step_size=3, gamma=0.5),
            ]
        ),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_schedule_is_torchs(name: str) -> None:
    schedule, make = CASES[name]
    steps = 25 if "cosine" in name and "then" in name else 30  # torch's one cycle ends there
    ours = [BASE * schedule(i) for i in range(steps)]
    assert ours == pytest.approx(of_torch(make, steps), rel=1e-9, abs=1e-12)


def test_a_schedule_that_is_done_stays_where_it_is() -> None:
    assert linear_warmup(10)(0) == 0
    assert linear_warmup(10)(10) == linear_warmup(10)(10**6) == 1
    assert cosine(10, end=0.25)(10**6) == 0.25
    assert linear_decay(10)(10**6) == 0
    assert step_decay(10)(10**6) == 0.0
    assert one_cycle(10, end=0.5)(10**6) == one_cycle(10, end=0.5)(9) == 0.5
    assert polynomial_decay(10, 2.0, end=0.25)(10**6) == 0.25
    assert one_cycle(1, end=0.5)(0) == 0.5
    assert cosine_restarts(10)(10**6) == 1 and cosine_restarts(10, 2)(10 * (2**40 - 1)) == 1


def test_three_in_a_row() -> None:
    schedule = linear_warmup(2).then(constant(steps=3)).then(linear_decay(4))
    assert [schedule(i) for i in range(10)] == [0, 0.5, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0]
    assert schedule.steps == 9
    assert (linear_warmup(2) * constant(steps=5)).steps == 5


def test_a_schedule_prints_as_it_is_written() -> None:
    assert repr(linear_warmup(2).then(cosine(5))) == (
        "linear_warmup(2, start=0.0).then(cosine(5, end=0.0))"
    )
    assert repr(polynomial_decay(2)) == "polynomial_decay(2, power=1.0, end=0.0)"
    assert repr(cosine_restarts(3, end=0.5)) == "cosine_restarts(3, growth=1, end=0.5)"
    assert repr(multi_step_decay((3, 5))) == "multi_step_decay([3, 5], gamma=0.1)"
    assert repr(exponential_decay(0.5)) == "exponential_decay(0.5)"
    assert repr(one_cycle(9, 0.5, 0.1, 0.01)) == (
        "one_cycle(9, warmup=0.5, start=0.1, end=0.01, three_phases=False, linear=False)"
    )
    assert one_cycle(9).then(constant()).steps is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: linear_warmup(0), "steps is no number of steps"),
        (lambda: cosine(2.5), "steps is no number of steps"),  # type: ignore[arg-type]
        (lambda: constant(steps=True), "steps is no number of steps"),
        (lambda: step_decay(0), "every is no number of steps"),
        (lambda: step_decay(3, gamma=-1), "gamma is no factor"),
        (lambda: linear_decay(3, end=math.nan), "end is no factor"),
        (lambda: constant(math.inf), "factor is no factor"),
        (lambda: constant().then(cosine(3)), "has no end"),
        (lambda: cosine_restarts(3, growth=0), "growth is no number of steps"),
        (lambda: cosine_restarts(3).then(cosine(3)), "has no end"),
        (lambda: one_cycle(0), "steps is no number of steps"),
        (lambda: one_cycle(9, warmup=1.0), r"share of the steps[^$]*in \(0, 1\)"),
        (lambda: one_cycle(9, warmup=0.6, three_phases=True), r"in \(0, 1/2\]"),
        (lambda: polynomial_decay(9, power=0.0), "power is out of range"),
        (lambda: exponential_decay(-1.0), "gamma is no factor"),
        (lambda: multi_step_decay([5, 3]), "ascending order"),
        (lambda: multi_step_decay([0]), "a milestone is no number of steps"),
        (lambda: cosine(3)(-1), "called with a step number"),
        (lambda: cosine(3)(1.5), "called with a step number"),  # type: ignore[arg-type]
    ],
)
def test_errors(make: Callable[[], Schedule], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


def test_steps_of_numpy() -> None:
    assert cosine(10)(np.int64(3)) == cosine(10)(3)


def test_a_product_with_a_number_is_no_schedule() -> None:
    with pytest.raises(TypeError):
        constant() * 2  # type: ignore[operator]
