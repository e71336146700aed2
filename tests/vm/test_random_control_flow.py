"""Random programs with branches, loops and writes: eager calls, interpreter and VM agree."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import meta
from meta import op
from tests.vm.test_random_programs import STEPS, check_program, flat, write


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


TABLE = {**STEPS, "branch": branch, "loop": loop}
steps = st.tuples(
    st.sampled_from([*sorted(TABLE), "branch", "branch", "loop"]),
    *[st.integers(0, 99)] * 3,
)


@settings(max_examples=60)
@given(st.lists(steps, min_size=1, max_size=8), st.lists(st.integers(0, 99), max_size=4))
def test_random_programs_with_control_flow(
    program: list[tuple[str, int, int, int]], wanted: list[int]
) -> None:
    check_program(program, wanted, TABLE)


@settings(max_examples=5, derandomize=True)
@given(st.lists(steps, min_size=4, max_size=8), st.lists(st.integers(0, 99), max_size=3))
def test_random_programs_with_control_flow_on_tvm(
    program: list[tuple[str, int, int, int]], wanted: list[int]
) -> None:
    with meta.dialect.only("tvm"):
        check_program(program, wanted, TABLE)
