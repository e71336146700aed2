"""Calls of several threads at the same time: results, bounds, weights that change meanwhile."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base.errors import ArgumentError, BackendError, OutOfMemory
from meta.model import BatchNorm, Conv2d, Flatten, Linear, ReLU, Sequential
from meta.runtime import num_threads
from meta.runtime.num_threads import Pool
from meta.vm.run import compiled_program

THREADS = 8


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    monkeypatch.setattr(num_threads, "cores", lambda: 4)
    monkeypatch.setattr(num_threads, "slots", None)
    yield
    torch.set_num_threads(before)


def network() -> Any:
    """A network of which something is prepared, and its float64 twin in torch."""
    model = Sequential(Conv2d(3, 4, 3), BatchNorm(4), ReLU(), Flatten(), Linear(4 * 16, 5))
    model.eval()
    return model


def reference(model: Any, x: np.ndarray[Any, Any]) -> torch.Tensor:
    """Compute in torch, in float64, what the network says."""
    state = {name: torch.tensor(array.numpy()).double() for name, array in model.state().items()}
    y = torch.nn.functional.conv2d(torch.tensor(x).double(), state["0.weight"], state["0.bias"])
    mean, var = state["1.running_mean"], state["1.running_var"]
    y = torch.nn.functional.batch_norm(y, mean, var, state["1.weight"], state["1.bias"])
    return y.relu().flatten(1) @ state["4.weight"].T + state["4.bias"]


def all_at_once(work: Callable[[int], None], count: int = THREADS) -> None:
    """Run on so many threads; raise what one of them raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(count)

    def run(number: int) -> None:
        start.wait()
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    for error in errors:
        raise error


@pytest.mark.parametrize("dialect", ["torch", "tvm"])
@pytest.mark.parametrize("counted", [False, True])
def test_results_under_stress(dialect: str, counted: bool) -> None:
    """Several executables, one of them for any batch."""
    if counted:
        meta.set_num_threads(1)
    model, small = network(), Sequential(Linear(6, 8), ReLU(), Linear(8, 3))
    small.eval()
    with meta.dialect.only(dialect, "torch"):
        fixed = meta.vm.compile(model, meta.ones((2, 3, 6, 6)))
        symbolic = meta.vm.compile(model, meta.ir.parse_type("float32[b, 3, 6, 6]"))
        other = meta.vm.compile(small, meta.ir.parse_type("float32[n, 6]"))
    weights = [torch.tensor(small.state()[n].numpy()).double() for n in ("0.weight", "2.weight")]
    biases = [torch.tensor(small.state()[n].numpy()).double() for n in ("0.bias", "2.bias")]

    def work(number: int) -> None:
        random = np.random.default_rng(number)
        for step in range(20):
            batch = 2 if step % 2 else int(random.integers(1, 7))
            x = random.standard_normal((batch, 3, 6, 6)).astype("float32")
            found = (fixed if step % 2 else symbolic)(meta.array(x)).torch()
            torch.testing.assert_close(found.double(), reference(model, x), atol=1e-4, rtol=1e-4)
            x = random.standard_normal((batch, 6)).astype("float32")
            hidden = (torch.tensor(x).double() @ weights[0].T + biases[0]).relu()
            torch.testing.assert_close(
                other(meta.array(x)).torch().double(),
                hidden @ weights[1].T + biases[1],
                atol=1e-5,
                rtol=1e-4,
            )

    all_at_once(work)
    assert 1 <= fixed._runs._count <= 4


def test_weights_that_change_meanwhile() -> None:
    """What is prepared of them is of the old ones or the new ones, in every call."""
    model = network()
    x = np.random.default_rng(0).standard_normal((2, 3, 6, 6)).astype("float32")
    run = meta.vm.compile(model, meta.array(x))
    assert run.code.prepared
    weight = model.state()["0.weight"]
    values = [weight.numpy() * scale for scale in (1.0, -1.0, 2.0)]
    expected = []
    for value in values:
        weight.update(value)
        expected.append(reference(model, x))
    ended = threading.Event()

    def work(number: int) -> None:
        if number == 0:
            for i in range(60):
                weight.update(values[i % 3])
                mine = run(meta.array(x)).torch().double()
                torch.testing.assert_close(mine, expected[i % 3], atol=1e-4, rtol=1e-4)
            ended.set()
        while not ended.is_set():
            found = run(meta.array(x)).torch().double()
            assert any(torch.allclose(found, e, atol=1e-4, rtol=1e-4) for e in expected)

    all_at_once(work, 4)


def slow(run: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let a run take a while; return how many there were at a time."""
    now, seen, lock = [0], [0], threading.Lock()
    launched = compiled_program.CompiledProgram._on_kernels

    def slower(*args: Any) -> Any:
        with lock:
            now[0] += 1
            seen[0] = max(seen[0], now[0])
        time.sleep(0.01)
        try:
            return launched(*args)
        finally:
            with lock:
                now[0] -= 1

    monkeypatch.setattr(compiled_program.CompiledProgram, "_on_kernels", slower)
    return seen


@pytest.mark.parametrize(("threads", "most"), [(1, 4), (2, 2), (3, 1), (9, 1)])
def test_they_fit_the_cores(threads: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all executables of the process."""
    meta.set_num_threads(threads)
    assert meta.get_num_threads() == threads
    runs = [meta.vm.compile(Linear(3, 2).eval(), meta.ones((4, 3))) for _ in range(3)]
    for run in runs:
        run(meta.ones((4, 3)))
    seen = slow(runs, monkeypatch)
    told: list[int] = []

    def work(number: int) -> None:
        for _ in range(3):
            runs[number % 3](meta.ones((4, 3)))
        told.append(torch.get_num_threads())

    all_at_once(work)
    assert seen[0] == most
    assert told == [threads] * THREADS, "it holds for every thread"


def test_without_a_word_one_executable_fits_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(4)
    run = meta.vm.compile(Linear(3, 2).eval(), meta.ones((4, 3)))
    run(meta.ones((4, 3)))
    seen = slow(run, monkeypatch)
    all_at_once(lambda number: run(meta.ones((4, 3))))
    assert seen == [1]


def test_what_writes_takes_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    model = Sequential(BatchNorm(3))  # which trains: running statistics are written
    run = meta.vm.compile(model, meta.ones((4, 3)))
    run(meta.ones((4, 3)))
    seen = slow(run, monkeypatch)
    all_at_once(lambda number: run(meta.ones((4, 3))))
    assert seen == [1]


def test_a_call_that_fails_gives_back_what_it_had() -> None:
    meta.set_num_threads(4)
    run = meta.vm.compile(Linear(3, 2).eval(), meta.ones((4, 3)))
    for _ in range(3):
        with pytest.raises(ArgumentError):
            run(meta.ones((5, 3)))
        with pytest.raises(BackendError):
            run.on_tensors([None])
    assert run(meta.ones((4, 3))).shape == (4, 2)


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "2", None])
def test_counts_that_are_none(count: Any) -> None:
    with pytest.raises(ArgumentError, match="so many threads"):
        meta.set_num_threads(count)


def test_a_pool() -> None:
    made: list[int] = []

    def another() -> int:
        made.append(1)
        return len(made)

    pool = Pool([0], another, lambda: 3)
    had = [pool.take() for _ in range(3)]
    assert had == [0, 1, 2]
    waiting = threading.Thread(target=lambda: had.append(pool.take()))
    waiting.start()
    time.sleep(0.05)
    assert len(had) == 3, "there are no more"
    pool.give(1)
    waiting.join(10)
    assert had == [0, 1, 2, 1]
    entered: list[int] = []

    def alone() -> None:
        with pool.all() as one:
            entered.append(one)

    closing = threading.Thread(target=alone)
    closing.start()
    pool.give(0)
    time.sleep(0.05)
    assert not entered, "two are in use"
    pool.give(1)
    pool.give(2)
    closing.join(10)
    assert len(entered) == 1
    assert sorted(pool.take() for _ in range(3)) == [0, 1, 2]


def test_where_there_is_no_memory_for_another() -> None:
    def full() -> int:
        raise OutOfMemory("full", planned=1, free=0)

    pool = Pool([0], full, lambda: 3)
    first = pool.take()
    found: list[int] = []
    waiting = threading.Thread(target=lambda: found.append(pool.take()))
    waiting.start()
    time.sleep(0.05)
    pool.give(first)
    waiting.join(10)
    assert found == [0]


def test_an_error_of_making_another() -> None:
    def broken() -> int:
        raise ValueError("broken")

    pool = Pool([0], broken, lambda: 2)
    pool.take()
    for _ in range(3):
        with pytest.raises(ValueError, match="broken"):
            pool.take()
    pool.give(0)
    with pool.all() as one:
        assert one == 0


def test_threads_sleep_after_a_call() -> None:
    """They take no time of the cores while nobody calls."""
    code = """
import sys, time, meta
meta.set_num_threads(4)
import torch
x = torch.ones(1 << 20)
torch.nn.functional.relu(x)
for _ in range(3):
    torch.nn.functional.relu(x)
begin = time.process_time()
for _ in range(10):
    torch.nn.functional.relu(x)
one = (time.process_time() - begin) / 10
begin = time.process_time()
for _ in range(10):
    torch.nn.functional.relu(x)
    time.sleep(0.02)
print((time.process_time() - begin) / 10 < one + 0.008)
"""
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.stdout.strip() == "True", done.stdout + done.stderr
