"""Def-use chains and the graph form: examples, and brute force oracles."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meta.ir import (
    Binding,
    DefUse,
    Function,
    GraphNode,
    Module,
    bindings,
    free_vars,
    operands,
    parse,
    structural_equal,
    to_graph,
    verify,
)
from meta.ir.visit import ReadsAndWrites, inner_blocks
from tests.ir.orders import from_graph
from tests.ir.programs import modules

quick = settings(max_examples=60, suppress_health_check=list(HealthCheck))


# definitions and uses


@pytest.mark.heavy
@quick
@given(modules())
def test_definitions_and_uses(module: Module) -> None:
    for function in module.functions.values():
        chains = DefUse(function)
        everything = list(bindings(function))
        blocks = [function.body, *(i for b in everything for i in inner_blocks(b.value))]
        assert chains.definitions == {b.var: b for b in everything}
        for var in {b.var for b in everything} | set(function.params):
            expected = {b for b in everything if var in set(operands(b.value))}
            results = {b for b in blocks if var in set(operands(b.result))}
            assert set(chains.users(var)) == expected | results
            assert len(chains.users(var)) == len(expected | results)


# graph form


BRANCHES = """
func @main(%p: bool[], %x: float32[]) -> float32[] {
  %a: float32[] = test_add(%x, %x)
  %b: float32[] = if %p {
    %c: float32[] = test_add(%a, %x)
    %d: float32[] = if %p {
      yield %c
    } else {
      %e: float32[] = test_add(%c, %c)
      yield %e
    }
    yield %d
  } else {
    yield %x
  }
  %f: float32[] = test_add(%b, %b)
  return %f
}"""


def test_the_graph_of_a_block() -> None:
    body = parse(BRANCHES).main.body
    a, b, f = to_graph(body)
    assert (a.inputs, b.inputs, f.inputs) == ([], [a], [b])


DIAMOND = """
func @main(%x: float32[]) -> float32[] {
  %a: float32[] = test_add(%x, %x)
  %b: float32[] = test_add(%a, %x)
  %c: float32[] = test_add(%a, %a)
  %d: float32[] = test_add(%b, %c)
  %e: float32[] = test_add(%a, %x)
  return RESULT
}"""


def places_of(numbers: dict[Binding, tuple[set[int], set[int]]]) -> ReadsAndWrites:
    return lambda binding: numbers[binding]  # type: ignore[return-value]


def depends(
    graph: tuple[GraphNode, ...], places: dict[Binding, tuple[set[int], set[int]]]
) -> set[tuple[int, int]]:
    """Return which pairs of nodes may not change places, by definition."""
    found = set()
    for j, late in enumerate(graph):
        inner = (v for b in inner_blocks(late.binding.value) for v in free_vars(b))
        used = {*operands(late.binding.value), *inner}
        for i, early in enumerate(graph[:j]):
            (r1, w1), (r2, w2) = places[early.binding], places[late.binding]
            if early.binding.var in used or (w1 & (r2 | w2)) or (r1 & w2):
                found.add((i, j))
    return found


def closure(edges: set[tuple[int, int]]) -> set[tuple[int, int]]:
    while True:
        more = {(a, d) for a, b in edges for c, d in edges if b == c} | edges
        if more == edges:
            return edges
        edges = more


@pytest.mark.heavy
@quick
@given(modules(), st.data())
def test_graph_form_keeps_every_dependence(module: Module, data: st.DataObject) -> None:
    place = st.sets(st.integers(0, 2), max_size=1)
    for name, function in module.functions.items():
        body = function.body
        numbers = {b: (data.draw(place), data.draw(place)) for b in body.bindings}
        graph = to_graph(body, places_of(numbers))
        again = from_graph(graph, body.result)
        assert list(again.bindings) == list(body.bindings)
        edges = {(s.position, n.position) for n in graph for s in (*n.inputs, *n.after)}
        assert closure(edges) == closure(depends(graph, numbers))

        wishes = data.draw(st.permutations(range(len(graph))))
        shuffled = from_graph(graph, body.result, lambda n, w=wishes: w[n.position])
        at = {b: i for i, b in enumerate(shuffled.bindings)}
        assert at.keys() == set(body.bindings)
        for i, j in edges:
            assert at[graph[i].binding] < at[graph[j].binding]
        result = function.result_type
        other = Function(function.params, shuffled, result, function.attrs)
        verify(module.with_functions({**module.functions, name: other}))
        assert structural_equal(Function(function.params, again, result, function.attrs), function)


def test_every_order_is_reached_by_some_priority() -> None:
    body = parse(DIAMOND.replace("RESULT", "%d")).main.body
    graph = to_graph(body)
    orders = {
        tuple(
            b.var.name
            for b in from_graph(graph, body.result, lambda n, w=wishes: w[n.position]).bindings
        )
        for wishes in permutations(range(5))
    }
    assert len(orders) == 8  # a first; b, c before d; e anywhere behind a
