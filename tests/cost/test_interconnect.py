"""Times of exchanges: formulas beside numbers by hand, what was measured, and what always holds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from meta.base.device import CPU
from meta.base.errors import ArgumentError
from meta.base.registry import OPERATORS
from meta.cost.interconnect import (
    BETWEEN,
    INFINIBAND,
    INSIDE,
    MEASURED_ON_TWO_H200,
    NVLINK,
    Link,
    Links,
    Reach,
    fitted,
    link_cost,
    links_key,
    links_of,
)
from meta.cost.store import save
from tests.cost import fake_costs

PLAIN = Links(
    Link("inside", 100.0, {"ring": 1.0}, startup=5.0),
    Link("between", 20.0, {"ring": 10.0}, startup=7.0),
    ranks_per_host=4,
)
"""Round numbers: bytes a microsecond, microseconds."""
PATTERNS = ("all_reduce", "gather", "scatter", "broadcast", "all_to_all", "send")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[None]:
    with fake_costs.store(tmp_path):
        yield


@pytest.mark.parametrize(
    ("pattern", "size", "time"),
    [
        ("all_reduce", 4, 5 + 6 * 1 + 2 * 3 / 4 * 1000 / 100),
        ("gather", 4, 5 + 3 * 1 + 3 / 4 * 1000 / 100),
        ("scatter", 4, 5 + 3 * 1 + 3 / 4 * 1000 / 100),
        ("broadcast", 4, 5 + 3 * 1 + 1000 / 100),
        ("send", 4, 5 + 1 + 1000 / 100),
        ("all_to_all", 4, 5 + 3 * 1 + 3 / 4 * 1000 / 100),
        # Three hosts: 2 of 11 hops go from one to another; four adapters carry 80, not 100.
        ("all_reduce", 12, 7 + 2 * (9 * 1 + 2 * 10) + 2 * 11 / 12 * 1000 / 80),
        ("gather", 12, 7 + 9 * 1 + 2 * 10 + 11 / 12 * 1000 / 80),
        ("send", 12, 7 + 10 + 1000 / 20),
        ("all_to_all", 12, 7 + 9 + 20 + 8 / 12 * 1000 / 20),
    ],
)
def test_formulas_by_hand(pattern: str, size: int, time: float) -> None:
    found, algorithm = PLAIN.time(pattern, 1000, PLAIN.reach({"dp": size}, "dp"))
    assert found == pytest.approx(time) and algorithm == "ring"


def test_a_tree_by_hand() -> None:
    links = Links(
        Link("inside", 100.0, {"ring": 1e3, "tree": 2.0}),
        Link("between", 90.0, {"ring": 1e3, "tree": 8.0}),
        ranks_per_host=2,
    )
    found = links.time("all_reduce", 900, links.reach({"dp": 8}, "dp"))
    assert found == (pytest.approx(2 * (1 * 2 + 2 * 8) + 2 * 900 / (0.9 * 100)), "tree")
    assert links.time("gather", 900, Reach(8, 4, 2))[1] == "ring"


@pytest.mark.parametrize(("count", "time"), MEASURED_ON_TWO_H200.items())
def test_the_default_is_near_what_was_measured(count: int, time: float) -> None:
    links = Links()
    assert links.time("all_reduce", count, Reach(2, 1, 2))[0] == pytest.approx(time, rel=0.2)
    assert NVLINK.bandwidth == pytest.approx(313e3, rel=0.05)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_more_takes_longer(pattern: str) -> None:
    links = Links()
    counts = [1 << i for i in range(0, 34, 2)]
    for size in (2, 3, 8, 16, 64, 1024):
        reach = links.reach({"dp": size}, "dp")
        times = [links.time(pattern, count, reach)[0] for count in counts]
        assert all(a < b for a, b in pairwise(times)), (size, times)
    if pattern != "send":
        for count in counts:
            within = [links.time(pattern, count, Reach(n, 1, n))[0] for n in range(1, 9)]
            across = [links.time(pattern, count, Reach(8 * n, n, 8))[0] for n in range(1, 129)]
            assert all(a < b for a, b in pairwise(within)), (count, within)
            assert all(a <= b for a, b in pairwise(across)), (count, across)


def test_nothing_takes_nothing() -> None:
    links = Links()
    assert links.time("all_reduce", 1000, Reach(1, 1, 1)) == (0.0, "")


def test_every_collective_has_a_pattern() -> None:
    patterns = {op.name: op.collective for op in OPERATORS.values() if op.collective}
    assert set(patterns.values()) == {*PATTERNS, "nothing", "wait"}
    for name in (name for name in patterns if name.endswith("_start")):
        assert patterns[name] == patterns[name.removesuffix("_start")]


def test_many_ranks_take_a_tree() -> None:
    links = Links()
    assert links.time("all_reduce", 1 << 29, Reach(8, 1, 8))[1] == "ring"
    assert links.time("all_reduce", 1 << 29, Reach(1024, 128, 8))[1] == "tree"
    assert links.time("all_reduce", 1 << 12, Reach(1024, 128, 8))[1] == "tree of small messages"


@pytest.mark.parametrize(
    ("sizes", "over", "reach"),
    [
        ({"dp": 2}, "dp", Reach(2, 1, 2)),
        ({"dp": 512}, "dp", Reach(512, 64, 8)),
        ({"dp": 16, "tp": 8}, "dp", Reach(16, 16, 1)),
        ({"dp": 16, "tp": 8}, "tp", Reach(8, 1, 8)),
        ({"tp": 2, "dp": 16}, "dp", Reach(16, 2, 8)),
        ({"dp": 4, "pp": 2, "tp": 2}, "pp", Reach(2, 1, 2)),
        ({"dp": 4, "tp": 3}, "tp", Reach(3, 2, 1)),  # ranks 6 and 7 here, rank 8 there
        ({"dp": 12}, "dp", Reach(12, 2, 4)),
    ],
)
def test_where_ranks_are(sizes: dict[str, int], over: str, reach: Reach) -> None:
    assert Links().reach(sizes, over) == reach


def test_a_link_follows_from_times() -> None:
    true = Link("x", 250.0, {"ring": 3.0})
    links = Links(true, true)
    times = {1 << i: links.time("all_reduce", 1 << i, Reach(4, 1, 4))[0] for i in (8, 12, 16, 20)}
    found = fitted("x", times, 4)
    assert found.bandwidth == pytest.approx(250.0)
    assert (found.startup, found.hops["ring"]) == (pytest.approx(8.4), pytest.approx(3.0))
    # A line that would begin below nothing.
    found = fitted("x", {1000: 1.0, 2000: 2.5}, 2)
    assert (found.startup, found.hops["ring"]) == (0.0, 0.0)
    assert math.isfinite(found.bandwidth) and 800 < found.bandwidth < 1000
    for times, ranks in (({1000: 5.0, 2000: 4.0}, 2), ({1000: 5.0}, 2), ({1: 1.0, 2: 2.0}, 1)):
        with pytest.raises(ArgumentError, match="no link follows from these times"):
            fitted("x", times, ranks)


def test_what_was_measured_is_kept() -> None:
    assert links_of(CPU) == Links(NVLINK, INFINIBAND)
    times = {1 << 14: 100.0, 1 << 20: 400.0}
    costs = [link_cost(count, 2, fake_costs.timing(time)) for count, time in times.items()]
    save(links_key(INSIDE, CPU), costs, anew=True)
    found = links_of(CPU)
    assert found.between == INFINIBAND and found.inside.measured
    assert found.inside == fitted("a link within hosts", times, 2, measured=True)
    assert "measured" in str(found.inside)
    save(links_key(BETWEEN, CPU), costs, anew=True)
    assert links_of(CPU).between.measured
    assert links_of(CPU).time("all_reduce", 1 << 20, Reach(2, 1, 2))[0] == pytest.approx(400)
