"""Random programs: the VM, after all passes, gives what the same eager calls give.

A program is a list of steps on a growing list of values: kernels, views, tuples, numbers, constants
and writes in place, branches and loops. It returns some of the values, so that memory is used again
in between.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import meta
from meta import op
from meta.base import config
from meta.model import trace
from meta.testing import check

N = 6
SHAPES = [(6,), (2, 3), (3, 2), (1, 6)]


def unary(name: str) -> Any:
    return lambda values, i, j, k: [OPS[name](values[i])]


OPS = {name: getattr(op, name) for name in ("tanh", "sigmoid", "negative", "relu", "abs")}


def flat(x: Any) -> Any:
    return op.reshape(x, (N,))


def write(values: list[Any], i: int, j: int, k: int) -> list[Any]:
    """Write to a value, perhaps through a view; what shares its memory changes too."""
    op.sgd(flat(values[i]), flat(values[j]), op.zeros((N,), "float32"), 0.25, 0.5)
    return []


STEPS = {
    **{name: unary(name) for name in OPS},
    "view": lambda values, i, j, k: [op.reshape(values[i], SHAPES[k % 4])],
    "add": lambda values, i, j, k: [op.add(flat(values[i]), flat(values[j]))],
    "times": lambda values, i, j, k: [op.multiply(values[i], (0.5, 1.0, 2, -1)[k % 4])],
    "minus": lambda values, i, j, k: [op.subtract(values[i], (0.0, -0.0, 0, 1)[k % 4])],
    "split": lambda values, i, j, k: [
        op.concat(op.split(flat(values[i]), 3, 0)[::-1], 0)
    ],
    # Copies, as nobody may write to what NumPy has as a view.
    "transpose": lambda values, i, j, k: [op.copy(op.permute_dims(op.reshape(values[i], (2, 3))))],
    "twice": lambda values, i, j, k: [op.copy(op.permute_dims(op.permute_dims(values[i])))],
    "astype": lambda values, i, j, k: [op.astype(values[i], "float32")],
    "constant": lambda values, i, j, k: [op.full((N,), 0.5 * k, "float32")],
    "dead": lambda values, i, j, k: [op.exp(values[i]), values[j]][1:],
    "write": write,
}  # fmt: skip


def branch(values: list[Any], i: int, j: int, k: int) -> list[Any]:
    """Two results of one of two branches: a new value, a view or an old one, perhaps written."""
    a, b = flat(values[i]), flat(values[j])

    def first(a: Any, b: Any) -> Any:
        if k % 2:
            write([a, b], 0, 1, 0)
        return op.tanh(a) * b, op.reshape(a, (2, 3))

    def second(a: Any, b: Any) -> Any:
        if k % 3 == 0:
            return b, op.reshape(op.exp(op.tanh(b)), (2, 3))
        return op.multiply(b, 1.0), op.reshape(b, (2, 3))

    condition = op.less(op.sum(a), 0.25 * (k % 5))
    return list(meta.cond(condition, first, second, a, b))


def loop(values: list[Any], i: int, j: int, k: int) -> list[Any]:
    """Some rounds of a loop that carries a new value, and writes to another one."""
    start, other = op.tanh(flat(values[i])), flat(values[j])

    def body(state: Any) -> Any:
        n, y = state
        if k % 2:
            write([other, y], 0, 1, 0)
        swapped = meta.cond(op.less(n, 1), lambda v: op.negative(v), lambda v: v + other * 0.5, y)
        return n + 1, op.tanh(swapped)

    zero = op.zeros((), "int64")
    return [meta.while_loop(lambda s: op.less(s[0], k % 4), body, (zero, start))[1]]


CONTROL = {"branch": branch, "loop": loop}
numbers = st.integers(0, 99)
EXAMPLES = {  # names of steps, at least and at most so many, the dialect, examples
    "straight lines": (sorted(STEPS), 1, 14, None, 150),
    "control flow": ([*sorted(STEPS), "branch", "branch", "loop"], 1, 8, None, 60),
    # Generated kernels: fewer, for each compiles.
    "straight lines on tvm": (sorted(STEPS), 4, 12, "tvm", 20),
    "control flow on tvm": ([*sorted(STEPS), "branch", "branch", "loop"], 4, 8, "tvm", 5),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_random_programs(name: str) -> None:
    names, least, most, dialect, count = EXAMPLES[name]
    step = st.tuples(st.sampled_from(names), numbers, numbers, numbers)

    @settings(max_examples=count, derandomize=dialect is not None)
    @given(st.lists(step, min_size=least, max_size=most), st.lists(numbers, max_size=4))
    def run(program: list[tuple[str, int, int, int]], wanted: list[int]) -> None:
        with nullcontext() if dialect is None else meta.dialect.only(dialect):
            check_program(program, wanted)

    run()


def check_program(program: list[tuple[str, int, int, int]], wanted: list[int]) -> None:
    """Compare interpreter and VM with the same calls done eagerly."""
    table = {**STEPS, **CONTROL}

    def run(x: Any, y: Any) -> Any:
        values = [op.tanh(x), op.multiply(y, 1.0), x]
        for name, i, j, k in program:
            values += table[name](values, i % len(values), j % len(values), k)
        return tuple(values[i % len(values)] for i in [-1 % len(values), *wanted])

    def inputs() -> tuple[meta.ndarray, meta.ndarray]:
        generator = torch.Generator().manual_seed(len(program))
        return tuple(meta.array(torch.randn(N, generator=generator)) for _ in range(2))

    with config.override(META_VERIFY=True):
        expected_inputs = inputs()
        expected = run(*expected_inputs)
        for make in (trace, lambda f: meta.vm.compile(trace(f), *inputs())):
            runner = make(run)
            first = inputs()
            found = runner(*first)
            copies = [f.numpy() for f in found]
            check(found, expected, 1e-6, 1e-6)
            check(first, expected_inputs, 1e-6, 1e-6)
            # A second call on other arrays gives the same and leaves the first results alone.
            check(runner(*inputs()), expected, 1e-6, 1e-6)
            check(found, [meta.array(c) for c in copies], 0, 0)
