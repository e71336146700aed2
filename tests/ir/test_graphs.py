"""Basic blocks, dominators, def-use chains, graph form: examples, and brute force oracles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meta.ir import (
    Binding,
    Block,
    ControlFlow,
    DefUse,
    Function,
    Graph,
    GraphNode,
    If,
    Module,
    Var,
    bindings,
    free_vars,
    from_graph,
    operands,
    parse,
    structural_equal,
    to_graph,
    verify,
)
from meta.ir.control_flow import BasicBlock
from meta.ir.dominators import immediate_dominators, reversed_edges
from meta.ir.graph import Places
from meta.ir.visit import inner_blocks
from tests.ir.programs import modules

quick = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


# dominators


def reached(successors: Sequence[Sequence[int]], entry: int, without: int | None) -> set[int]:
    """Return the nodes to which there is a path that avoids one node."""
    seen, stack = set(), [entry] if entry != without else []
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack += [s for s in successors[node] if s != without]
    return seen


def strict_dominators(successors: Sequence[Sequence[int]], entry: int) -> list[set[int]]:
    """Return by definition: ``a`` dominates ``b`` if no path to ``b`` avoids it."""
    nodes = range(len(successors))
    found: list[set[int]] = [set() for _ in nodes]
    everything = reached(successors, entry, None)
    for a in everything:
        for b in everything - reached(successors, entry, a) - {a}:
            found[b].add(a)
    return found


def chain(immediate: Sequence[int | None], node: int) -> set[int]:
    found = set()
    parent = immediate[node]
    while parent is not None:
        found.add(parent)
        parent = immediate[parent]
    return found


@st.composite
def graphs(draw: st.DrawFn) -> list[list[int]]:
    """Draw any directed graph: loops, unreachable nodes, edges to itself."""
    count = draw(st.integers(1, 9))
    node = st.integers(0, count - 1)
    return [draw(st.lists(node, max_size=3)) for _ in range(count)]


@given(graphs())
def test_dominators_are_what_every_path_goes_through(successors: list[list[int]]) -> None:
    immediate = immediate_dominators(successors, 0)
    expected = strict_dominators(successors, 0)
    assert [chain(immediate, n) for n in range(len(successors))] == expected


def test_dominators_of_a_graph_of_cooper_harvey_and_kennedy() -> None:
    """Figure 4 of the paper, a graph that no nesting gives; 6 is the entry."""
    edges = {6: [5, 4], 5: [1], 4: [2, 3], 3: [2], 2: [1, 3], 1: [2], 0: []}
    found = immediate_dominators([edges[n] for n in range(7)], 6)
    assert found == [None, 6, 6, 6, 6, 6, None]


def test_a_long_chain() -> None:
    count = 50_000
    found = immediate_dominators([[i + 1] for i in range(count - 1)] + [[]], 0)
    assert found == [None, *range(count - 1)]


# control flow

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


def shown(flow: ControlFlow) -> list[tuple[str, list[int], int | None, int | None]]:
    """Return per block: bindings, successors, immediate dominator and post-dominator."""

    def index(tree: dict[BasicBlock, BasicBlock], block: BasicBlock) -> int | None:
        return tree[block].index if block in tree else None

    return [
        (
            "".join(x.var.name for x in b.bindings),
            [s.index for s in b.successors],
            index(flow.immediate_dominators, b),
            index(flow.immediate_post_dominators, b),
        )
        for b in flow.blocks
    ]


def test_basic_blocks() -> None:
    flow = ControlFlow(parse(BRANCHES).main)
    assert shown(flow) == [
        ("a", [1, 5], None, 6),
        ("c", [2, 3], 0, 4),
        ("", [4], 1, 4),
        ("e", [4], 1, 4),
        ("", [6], 1, 6),
        ("", [6], 0, 6),
        ("f", [], 0, None),
    ]
    assert flow.entry is flow.blocks[0]
    assert flow.exit is flow.blocks[6]
    assert flow.blocks[4].joins is flow.blocks[1].branch
    assert flow.dominates(flow.blocks[1], flow.blocks[3])
    assert not flow.dominates(flow.blocks[1], flow.blocks[5])
    assert flow.post_dominates(flow.blocks[4], flow.blocks[1])
    assert not flow.post_dominates(flow.blocks[3], flow.blocks[1])


def runs(block: Block) -> Iterator[list[Binding]]:
    """Yield the bindings that are evaluated, for every choice of every conditional."""
    paths: list[list[Binding]] = [[]]
    for binding in block.bindings:
        tails = [[binding]]
        if isinstance(binding.value, If):
            sides = inner_blocks(binding.value)
            tails = [[*inner, binding] for side in sides for inner in runs(side)]
        paths = [[*path, *tail] for path in paths for tail in tails]
    yield from paths


@quick
@given(modules())
def test_control_flow_is_that_of_every_run(module: Module) -> None:
    for function in module.functions.values():
        flow = ControlFlow(function)
        every = [[flow.block_of(b) for b in path] for path in runs(function.body)]
        if not 0 < len(every) <= 64:
            continue
        seen = set().union(*every)
        for a in seen:
            for b in seen:
                before = all(a in path[: path.index(b) + 1] for path in every if b in path)
                assert flow.dominates(a, b) is before
                after = all(a in path[path.index(b) :] for path in every if b in path)
                assert flow.post_dominates(a, b) is after
        for block in flow.blocks:
            assert all(s.index > block.index for s in block.successors)
            assert all(block in s.predecessors for s in block.successors)


# definitions and uses


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


def test_the_graph_of_a_block() -> None:
    body = parse(BRANCHES).main.body
    graph = to_graph(body)
    a, b, f = graph.nodes
    assert (a.users, b.inputs, b.users, f.inputs) == ([b], [a], [f], [b])
    assert graph.node_of(a.binding.var) is a
    assert graph.post_dominators() == {a: b, b: f}


DIAMOND = """
func @main(%x: float32[]) -> float32[] {
  %a: float32[] = test_add(%x, %x)
  %b: float32[] = test_add(%a, %x)
  %c: float32[] = test_add(%a, %a)
  %d: float32[] = test_add(%b, %c)
  %e: float32[] = test_add(%a, %x)
  return RESULT
}"""


@pytest.mark.parametrize(
    ("result", "expected"),
    [("%d", {"b": "d", "c": "d"}), ("(%d, %b)", {"c": "d"}), ("%e", {"b": "d", "c": "d"})],
)
def test_post_dominators_of_the_flow_of_data(result: str, expected: dict[str, str]) -> None:
    graph = to_graph(parse(DIAMOND.replace("RESULT", result)).main.body)
    found = graph.post_dominators()
    assert {k.binding.var.name: v.binding.var.name for k, v in found.items()} == expected


def places_of(numbers: dict[Binding, tuple[set[int], set[int]]]) -> Places:
    return lambda binding: numbers[binding]  # type: ignore[return-value]


def depends(graph: Graph, places: dict[Binding, tuple[set[int], set[int]]]) -> set[tuple[int, int]]:
    """Return which pairs of nodes may not change places, by definition."""
    found = set()
    for j, late in enumerate(graph.nodes):
        inner = (v for b in inner_blocks(late.binding.value) for v in free_vars(b))
        used = {*operands(late.binding.value), *inner}
        for i, early in enumerate(graph.nodes[:j]):
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


@quick
@given(modules(), st.data())
def test_graph_form_keeps_every_dependence(module: Module, data: st.DataObject) -> None:
    place = st.sets(st.integers(0, 2), max_size=1)
    for name, function in module.functions.items():
        body = function.body
        numbers = {b: (data.draw(place), data.draw(place)) for b in body.bindings}
        graph = to_graph(body, places_of(numbers))
        again = from_graph(graph)
        assert list(again.bindings) == list(body.bindings)
        edges = {(s.position, n.position) for n in graph.nodes for s in (*n.inputs, *n.after)}
        assert closure(edges) == closure(depends(graph, numbers))

        wishes = data.draw(st.permutations(range(len(graph.nodes))))
        shuffled = from_graph(graph, lambda n, w=wishes: w[n.position])
        at = {b: i for i, b in enumerate(shuffled.bindings)}
        assert at.keys() == set(body.bindings)
        for i, j in edges:
            assert at[graph.nodes[i].binding] < at[graph.nodes[j].binding]
        result = function.result_type
        other = Function(function.params, shuffled, result, function.attrs)
        verify(module.with_functions({**module.functions, name: other}))
        assert structural_equal(Function(function.params, again, result, function.attrs), function)


def paths(node: GraphNode, leaving: set[GraphNode]) -> list[list[GraphNode]]:
    """Return every way from a node's users to the result or to a node without users."""
    ends = [[]] if node in leaving or not node.users else []
    return [*ends, *([u, *rest] for u in node.users for rest in paths(u, leaving))]


@settings(quick, max_examples=150)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=8), st.data())
def test_post_dominators_are_on_every_way(
    steps: list[tuple[int, int]], data: st.DataObject
) -> None:
    lines = [
        f"%v{i}: float32[] = test_add({', '.join(f'%v{i - s}' if i >= s else '%x' for s in pair)})"
        for i, pair in enumerate(steps)
    ]
    results = data.draw(st.sets(st.integers(0, len(steps) - 1), min_size=1, max_size=2))
    fields = "".join(f"%v{i}," for i in sorted(results))
    body = "\n".join(lines) + f"\nreturn ({fields})"
    graph = to_graph(parse(f"func @main(%x: float32[]) {{ {body} }}").main.body)
    found = graph.post_dominators()
    leaving = {graph.node_of(a) for a in operands(graph.result) if isinstance(a, Var)}
    for node in graph.nodes:
        ways = paths(node, leaving)  # type: ignore[arg-type]
        common = [n for n in graph.nodes if all(n in way for way in ways)]
        assert found.get(node) is (common[0] if common else None)


def test_every_order_is_reached_by_some_priority() -> None:
    body = parse(DIAMOND.replace("RESULT", "%d")).main.body
    graph = to_graph(body)
    orders = {
        tuple(b.var.name for b in from_graph(graph, lambda n, w=wishes: w[n.position]).bindings)
        for wishes in permutations(range(5))
    }
    assert len(orders) == 8  # a first; b, c before d; e anywhere behind a


def test_edges_turned_round() -> None:
    assert reversed_edges([[1, 2], [2], []]) == [[], [0], [0, 1]]
