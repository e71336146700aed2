"""Random programs over the real operators mean the same after every prefix of the pipeline.

A failure prints the smallest program found and the pass that changed its meaning. Torch's kernels
run them, bit for bit; a few run on TVM's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import meta
from meta.base.registry import OPERATORS
from meta.dialect.core.ir_calls import base_op
from meta.ir import Call, Module, bindings
from meta.vm.compiler.pipeline import MAX_LEVEL
from tests.programs.operators import ROWS, SMOOTH_ROWS, Row
from tests.programs.prefixes import check_compiled, check_gradients, check_prefixes
from tests.programs.writer import CONTROL, HELD, Step, write_module

numbers = st.integers(0, 47)
wanted = st.lists(numbers, max_size=3)


def steps(names: list[str]) -> st.SearchStrategy[list[Step]]:
    step = st.tuples(st.sampled_from(names), numbers, numbers, numbers)
    return st.lists(step, min_size=1, max_size=16)


ALL = sorted(ROWS) + sorted(ROWS) + list(CONTROL) * 6 + list(HELD) * 6 + ["write"] * 6
# References in straight-line code become values, which have gradients.
SMOOTH = sorted(SMOOTH_ROWS) + ["make_ref", "read_ref", "write_ref"] * 4
# Without transcendental functions: a kernel of several takes TVM long to compile.
TVM_ROWS = {
    name: ROWS[name]
    for name in (
        "add", "subtract", "multiply", "maximum", "relu", "negative", "abs", "sum", "view",
        "permute_dims", "concat", "split", "matmul", "clip", "broadcast_to", "flip", "pad",
    )
}  # fmt: skip
FEW = pytest.param(150, id="sample")
MANY = pytest.param(2000, id="all", marks=pytest.mark.slow)


def repeated(count: int) -> settings:
    return settings(max_examples=count, suppress_health_check=list(HealthCheck), database=None)


@pytest.mark.parametrize("count", [FEW, MANY])
@pytest.mark.long
def test_every_prefix(count: int) -> None:
    @repeated(count)
    @given(steps(ALL), wanted)
    def run(program: list[Step], results: list[int]) -> None:
        with meta.dialect.only("torch"):
            check_prefixes(write_module(program, results, ROWS))

    run()


@pytest.mark.parametrize("count", [FEW, MANY])
def test_the_vm(count: int) -> None:
    @repeated(count)
    @given(steps(ALL), wanted, st.integers(0, MAX_LEVEL))
    def run(program: list[Step], results: list[int], opt_level: int) -> None:
        with meta.dialect.only("torch"):
            check_compiled(write_module(program, results, ROWS), opt_level)

    run()


@pytest.mark.parametrize("count", [FEW, MANY])
@pytest.mark.long
def test_gradients(count: int) -> None:
    @repeated(count)
    @given(steps(SMOOTH))
    def run(program: list[Step]) -> None:
        with meta.dialect.only("torch"):
            module = write_module(program, [], SMOOTH_ROWS, "float64")
            check_prefixes(check_gradients(module))

    run()


def test_the_programs_use_the_operators() -> None:
    used = Counter(
        op.name
        for module in drawn(400, ROWS, ALL)
        for function in module.functions.values()
        for binding in bindings(function)
        if isinstance(binding.value, Call) and (op := base_op(binding.value.callee)) is not None
    )
    assert len(used) >= 100, sorted(used)
    assert not [name for name in ROWS if name in OPERATORS and name not in used]


def drawn(count: int, rows: Mapping[str, Row], names: list[str]) -> list[Module]:
    random = Random(0)

    def step() -> Step:
        return (random.choice(names), *(random.randrange(48) for _ in range(3)))  # type: ignore

    return [write_module([step() for _ in range(12)], [0, 5, 9], rows) for _ in range(count)]


def test_on_tvm() -> None:
    """A few programs without jumps, for which rounding that differs is no matter."""
    for module in drawn(6, TVM_ROWS, sorted(TVM_ROWS)):
        with meta.dialect.only("tvm"):
            check_compiled(module, MAX_LEVEL, rtol=1e-4, atol=1e-4)
