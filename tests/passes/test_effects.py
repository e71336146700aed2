"""Effects: every order that the edges of data and of order allow gives the same results."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import meta
from meta.ir import Block, Function, Module, parse, to_graph
from meta.passes import infer_type
from meta.passes.effects import Effects
from meta.passes.liveness import Liveness
from meta.vm.run.interpreter import run_module
from tests.ir.orders import from_graph
from tests.programs.operators import ROWS
from tests.programs.prefixes import outcome
from tests.programs.writer import CONTROL, HELD, Step, write_module


def shuffled(module: Module, seed: int) -> Module:
    """Return the module with its functions' bindings in an order drawn from those allowed."""
    random = Random(seed)

    def body(function: Function) -> Block:
        effects = Effects(function, Liveness(function, module))
        graph = to_graph(function.body, effects.places)
        return from_graph(graph, function.body.result, lambda node: random.randrange(1000))

    return module.with_functions({n: replace(f, body=body(f)) for n, f in module.functions.items()})


numbers = st.integers(0, 47)
names = st.sampled_from([*sorted(ROWS), *[*CONTROL, *HELD] * 8, *["write"] * 40, *["view"] * 20])
steps = st.lists(st.tuples(names, numbers, numbers, numbers), min_size=4, max_size=20)


@settings(max_examples=150, suppress_health_check=list(HealthCheck), database=None)
@given(steps, st.lists(numbers, max_size=3), st.integers(0, 999))
def test_any_order_gives_the_same(program: list[Step], results: list[int], seed: int) -> None:
    with meta.dialect.only("torch"):
        module = write_module(program, results, ROWS)
        other = shuffled(module, seed)
        expected = outcome(lambda *args: run_module(module, args), module)
        found = outcome(lambda *args: run_module(other, args), module)
    for a, b in zip(found, expected, strict=True):
        assert a.allclose(b, rtol=0, atol=0, equal_nan=True), f"{module}\n{other}"


UPDATE = "sgd({0}, %g, %v, 0.1, 0.0)"
FUNCTIONS = """
func @same(%x: float32[4]) -> float32[4] { return %x }
func @f(%a: float32[4], %b: float32[4], %g: float32[4], %v: float32[4]) -> float32[4] {
  %c = exp(%a)
  %w = sgd(%b, %g, %v, 0.1, 0.0)
  return %c
}
"""


@pytest.mark.parametrize(
    ("lines", "moves"),
    [
        (("%c = exp(%x)", "%w = sgd(%x, %g, %v, 0.1, 0.0)"), False),  # read, then written
        (("%w = sgd(%x, %g, %v, 0.1, 0.0)", "%c = exp(%x)"), False),  # written, then read
        (("%u = sgd(%x, %g, %v, 0.1, 0.0)", "%w = sgd(%x, %g, %y, 0.1, 0.0)"), False),
        (("%u = sgd(%x, %g, %v, 0.1, 0.0)", "%w = sgd(%y, %g, %z, 0.1, 0.0)"), True),
        (("%c = exp(%y)", "%w = sgd(%x, %g, %v, 0.1, 0.0)"), True),
        (("%r = reshape(%x, shape=(2, 2))", "%c = exp(%r)", UPDATE.format("%x")), False),
        (("%t = (%x, %y)", "%r = %t.0", "%c = exp(%r)", UPDATE.format("%x")), False),
        (("%t = (%x, %y)", "%r = %t.0", "%c = exp(%r)", UPDATE.format("%y")), True),
        # What a function returns may be what it was given.
        (("%r = @same(%x)", "%c = exp(%x)", UPDATE.format("%r")), False),
        (("%r = @same(%x)", "%c = exp(%y)", UPDATE.format("%r")), True),
    ],
)
def test_what_passes_what(lines: tuple[str, ...], moves: bool) -> None:
    body = "\n".join(line if "=" in line[:4] else f"%w = {line}" for line in lines)
    params = ", ".join(f"%{n}: float32[4]" for n in "xyzgv")
    module = infer_type(parse(f"func @main({params}) {{\n{body}\nreturn %x\n}}{FUNCTIONS}"))
    assert last_two_are_apart(module, module.main) == moves


def test_the_arguments_of_other_functions_may_be_the_same() -> None:
    module = infer_type(parse(f"func @main(%x: float32[4]) {{ return %x }}{FUNCTIONS}"))
    assert not last_two_are_apart(module, module.functions["f"])


def last_two_are_apart(module: Module, function: Function) -> bool:
    effects = Effects(function, Liveness(function, module))
    *_, first, second = to_graph(function.body, effects.places)
    return first not in (*second.after, *second.inputs)
