"""Random programs: the VM, after all passes, gives what the same eager calls give.

A program is a list of steps on a growing list of values: kernels, views, tuples, numbers, constants
and writes in place. It returns some of the values, so that memory is used again in between.
"""

from __future__ import annotations

from typing import Any

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
    "transpose": lambda values, i, j, k: [op.permute_dims(op.reshape(values[i], (2, 3)))],
    "twice": lambda values, i, j, k: [op.permute_dims(op.permute_dims(values[i]))],
    "astype": lambda values, i, j, k: [op.astype(values[i], "float32")],
    "constant": lambda values, i, j, k: [op.full((N,), 0.5 * k, "float32")],
    "dead": lambda values, i, j, k: [op.exp(values[i]), values[j]][1:],
    "write": write,
}  # fmt: skip

steps = st.tuples(
    st.sampled_from(sorted(STEPS)), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99)
)


@settings(max_examples=150)
@given(st.lists(steps, min_size=1, max_size=14), st.lists(st.integers(0, 99), max_size=4))
def test_random_programs(program: list[tuple[str, int, int, int]], wanted: list[int]) -> None:
    check_program(program, wanted)


def check_program(
    program: list[tuple[str, int, int, int]], wanted: list[int], table: dict[str, Any] = STEPS
) -> None:
    """Compare interpreter and VM with the same calls done eagerly."""

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
