"""The search for plans against all plans there are, on random steps and times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta.cost.plan_search import Link, Option, Step, Steps, fuses

times = st.integers(0, 40).map(lambda n: n / 4)
options = st.builds(
    Option,
    name=st.just("k"),
    time=times,
    family=st.sampled_from(["", "a", "b"]),
    own=st.integers(0, 2),
    read=st.integers(0, 2),
    breaks=st.booleans(),
    layout=st.sampled_from(["", "", "last"]),
)


@st.composite
def blocks(draw: Any, chain: bool, layers: bool, most: int = 6) -> Steps:
    """Steps that each read the one before (a chain), or any before; equal layers have the same
    options.
    """
    kinds = draw(st.lists(st.lists(options, min_size=1, max_size=3), min_size=1, max_size=3))
    steps = []
    for number in range(draw(st.integers(1, most))):
        layer = draw(st.integers(0, len(kinds) - 1)) if layers else None
        found = (
            kinds[layer] if layer is not None else draw(st.lists(options, min_size=1, max_size=3))
        )
        before = range(max(number - 1, 0), number) if chain else range(number)
        links = [Link(s, draw(times), draw(times)) for s in before if chain or draw(st.booleans())]
        steps.append(Step(tuple(found), tuple(links), layer))
    return Steps(tuple(steps), draw(times))


def all_plans(block: Steps) -> Iterator[Sequence[int]]:
    """Yield every plan in which the steps of a layer agree."""
    for picks in product(*(range(len(step.options)) for step in block.steps)):
        chosen: dict[Any, set[int]] = {}
        for step, pick in zip(block.steps, picks, strict=True):
            chosen.setdefault(step.layer, set()).add(pick)
        if all(len(found) == 1 or layer is None for layer, found in chosen.items()):
            yield picks


@given(
    st.one_of(blocks(True, False), blocks(True, True), blocks(False, False), blocks(False, True))
)
def test_the_cheapest_plan_is_found_where_few_are_open(block: Steps) -> None:
    picks = block.plan()
    assert picks in set(map(tuple, all_plans(block)))
    assert block.total(picks) == pytest.approx(min(map(block.total, all_plans(block))), abs=1e-9)


@given(blocks(True, False, most=24))
def test_a_chain_of_any_length_needs_few_open_plans(block: Steps) -> None:
    """At each step, what comes later depends on the last choice and on whether a graph broke."""
    assert block.total(block.plan(6)) == pytest.approx(block.total(block.plan(10_000)), abs=1e-9)


@given(blocks(False, True, most=12), st.integers(1, 4))
def test_no_plan_costs_more_than_the_first_options(block: Steps, width: int) -> None:
    picks = block.plan(width)
    assert block.total(picks) <= block.total((0,) * len(picks))
    assert block.plan(width) == picks


@given(blocks(False, True, most=10))
def test_what_gains_nothing_is_not_changed(block: Steps) -> None:
    """No layer could go back to its first option without a loss."""
    picks = block.plan()
    layers = [s.layer if s.layer is not None else (n,) for n, s in enumerate(block.steps)]
    for layer in {layers[n] for n, pick in enumerate(picks) if pick}:
        without = tuple(0 if layers[n] == layer else p for n, p in enumerate(picks))
        assert block.total(without) > block.total(picks)


def test_fusion_needs_one_dialect_and_ranks_that_fit() -> None:
    reads, sums = Option("a", 1.0, "a", own=3, read=0), Option("a", 1.0, "a", own=1, read=3)
    assert fuses(reads, reads)
    assert fuses(reads, sums)
    assert not fuses(sums, sums)
    assert not fuses(reads, Option("b", 1.0, "b", own=3, read=0))
    assert not fuses(Option("a", 1.0), Option("a", 1.0))


def test_a_layout_changes_where_that_pays() -> None:
    """Two convolutions gain less than two transposes take, three gain more."""
    ends = Step((Option("first", 1.0),))
    both = (Option("first", 10.0), Option("last", 7.0, layout="last"))

    def chain(count: int) -> Steps:
        middle = [Step(both, (Link(i, turned=4.0),)) for i in range(count)]
        return Steps((ends, *middle, Step(ends.options, (Link(count, turned=4.0),))))

    assert chain(2).plan() == (0, 0, 0, 0)
    assert chain(3).plan() == (0, 1, 1, 1, 0)


def test_a_break_of_a_graph_costs_its_ends() -> None:
    inside, outside = Option("a", 1.0), Option("b", 1.0, breaks=True)
    block = Steps(tuple(Step((o,)) for o in (inside, outside, outside, inside, outside)), gap=10.0)
    assert block.total((0,) * 5) == 5.0 + 20.0 + 10.0 + 20.0
