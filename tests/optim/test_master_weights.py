"""Float32 masters take over what others write to half precision parameters between steps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.optim import SGD, Adafactor, AdamW, with_adafactor, with_adamw, with_sgd
from meta.vm import compile

HALF = ("float16", "bfloat16")


class Weights(meta.Model):
    """A model that is linear in two parameters."""

    def build(self, dtype: str) -> None:
        torch.manual_seed(0)
        self.w = meta.array(torch.randn(3, 4), dtype)
        self.b = meta.array(torch.randn(()), dtype)
        self.w.requires_grad = self.b.requires_grad = True

    @meta.model.trace
    def forward(self, x: Any) -> Any:
        return meta.sum(self.w * x) + self.b


def by_update(w: Any) -> None:
    w.update(meta.full(w.shape, 5.0, w.dtype))


def by_item(w: Any) -> None:
    with meta.no_grad():
        w[0] = 5.0


def by_operator(w: Any) -> None:
    with meta.no_grad():
        w -= 3.0


def by_torch(w: Any) -> None:
    w.detach().torch()[1:].fill_(-2.0)


def by_init(w: Any) -> None:
    meta.model.init.ones(w)


WRITES = (by_update, by_item, by_operator, by_torch, by_init)
ALGORITHMS = [
    (SGD, with_sgd, {"lr": 0.01, "momentum": 0.9}),
    (AdamW, with_adamw, {"lr": 0.01}),
    (Adafactor, with_adafactor, {"lr": 0.01}),
]


def stepper(model: Weights, mode: str, algorithm: Any) -> tuple[Callable[[], Any], Any]:
    """Return what makes a step, and the optimizer."""
    kind, make, options = algorithm
    x = meta.full((3, 4), 0.5, model.w.dtype)
    if mode == "eager":
        optimizer = kind(model.parameters(), **options)

        def run() -> None:
            optimizer.zero_grad()
            model(x).backward()
            optimizer.step()

        return run, optimizer
    step = make(**options)(model)
    dy = meta.ones((), model.w.dtype)
    whole = compile(step, dy, x) if mode == "compiled" else step
    return lambda: whole(dy, x), step.optimizer


def masters(optimizer: Any) -> list[torch.Tensor]:
    return [m.torch().clone() for m in optimizer.master.values()]


@pytest.mark.heavy
@pytest.mark.product
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: a[0].__name__)
@pytest.mark.parametrize("mode", ["eager", "interpreter", "compiled"])
@pytest.mark.parametrize("dtype", HALF)
def test_a_step_goes_on_from_what_was_written(
    write: Callable[[Any], None], algorithm: Any, mode: str, dtype: str
) -> None:
    model = Weights(dtype)
    run, optimizer = stepper(model, mode, algorithm)
    for _ in range(2):
        run()
    before, kept = model.w.torch().float(), masters(optimizer)
    write(model.w)
    written = model.w.torch().float()
    assert not torch.equal(written, before)
    run()
    # A step moves an element by about the learning rate.
    torch.testing.assert_close(model.w.torch().float(), written, rtol=0.02, atol=0.1)
    for master, array in zip(masters(optimizer), (model.w, model.b), strict=True):
        assert torch.equal(master.to(array.torch().dtype), array.torch())
    # What was not written keeps the digits of its master.
    rounded = written == before
    moved = masters(optimizer)[0]
    torch.testing.assert_close(moved[rounded], kept[0][rounded], rtol=0.02, atol=0.1)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: a[0].__name__)
@pytest.mark.parametrize("mode", ["eager", "interpreter", "compiled"])
@pytest.mark.parametrize("dtype", HALF)
def test_masters_keep_their_digits_where_nothing_was_written(
    algorithm: Any, mode: str, dtype: str
) -> None:
    """A write of the same values is none, and so is one to another element."""
    model, same = Weights(dtype), Weights(dtype)
    (run, optimizer), (again, other) = (stepper(m, mode, algorithm) for m in (model, same))
    for _ in range(4):
        run()
        again()
        same.w.update(same.w.clone().detach())
        with meta.no_grad():
            same.w[:0] = 3.0
    for a, b in zip(masters(optimizer), masters(other), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, a.to(model.w.torch().dtype).float())


def test_steps_that_nobody_disturbs_write_no_master_twice() -> None:
    model = Weights("float16")
    run, optimizer = stepper(model, "compiled", ALGORITHMS[0])
    run()
    counts = []
    for _ in range(3):
        start = [m.torch()._version for m in optimizer.master.values()]
        run()
        ends = [m.torch()._version for m in optimizer.master.values()]
        counts.append([end - first for first, end in zip(start, ends, strict=True)])
    assert counts == [[1, 1]] * 3


def test_memory_that_numpy_writes_is_looked_at_for_each_step() -> None:
    model = Weights("float16")
    seen = np.ones((3, 4), "float16")
    model.w = meta.from_dlpack(seen)
    model.w.requires_grad = True
    run, optimizer = stepper(model, "compiled", ALGORITHMS[1])
    for value in (3.0, -3.0):
        run()
        seen[1] = value
        run()
        torch.testing.assert_close(
            optimizer.master["w"].torch()[1], torch.full((4,), value), rtol=0, atol=0.05
        )


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_a_copy_that_was_written_before_its_first_step(mode: str) -> None:
    model = Weights("bfloat16")
    step = with_sgd(0.0)(model)
    by_update(model.w)
    other = copy.deepcopy(step)
    step.state()["model.w"].update(meta.zeros((3, 4)))
    dy, x = meta.ones((), "bfloat16"), meta.ones((3, 4), "bfloat16")
    run = compile(other, dy, x) if mode == "compiled" else other
    run(dy, x)
    assert torch.equal(other.model.w.torch(), torch.full((3, 4), 5.0, dtype=torch.bfloat16))


def test_a_profile_and_a_debug_run_start_from_what_was_written() -> None:
    step = with_sgd(0.0)(Weights("float16"))
    dy, x = meta.ones((), "float16"), meta.ones((3, 4), "float16")
    whole = compile(step, dy, x)
    whole(dy, x)
    by_update(step.model.w)
    whole.debug(dy, x)
    assert torch.equal(step.optimizer.master["w"].torch(), torch.full((3, 4), 5.0))
