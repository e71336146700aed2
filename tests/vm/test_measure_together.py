"""Contests that go on side by side: what they need is compiled in one go, and each has the costs
that it would have alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

import meta
from meta.base.device import CPU
from meta.base.errors import OutOfMemory
from meta.cost.chooser import CostChooser, configurations
from meta.cost.record import Breadth
from meta.cost.roofline import Peaks
from meta.dialect import HANDWRITTEN, LIBRARY
from meta.dialect.core import DIALECTS, Configs, Deferred, OpEnv
from meta.dialect.core.openv import CompiledKernel
from meta.ir import TensorType
from meta.op.core import CallValues
from meta.vm.benchmark import benchmark as benchmark_module
from meta.vm.benchmark import measure
from meta.vm.benchmark.benchmark import Rules, benchmark, benchmarks
from meta.vm.benchmark.workload import Workload, call_workload
from meta.vm.eager.example_calls import ExampleCall
from tests.vm.fakes import Fakes

TILES = (8, 4, 2)


@pytest.fixture(autouse=True)
def torch_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fakes take part here, and nobody is known to be far behind."""
    monkeypatch.setattr("meta.vm.benchmark.measure._hopeless", {})
    with meta.dialect.exclude("tvm"):
        yield


def call(rows: int) -> CallValues:
    return meta.tanh.call_values((TensorType((rows, 4), "float32"),), CPU)


def subject(rows: int) -> Workload:
    one = call(rows)
    return call_workload(ExampleCall(one, tuple(one.args)))


def compiling(
    fakes: Fakes, name: str, plevel: int, times: Callable[[int, int], float]
) -> list[list[tuple[int, int]]]:
    """Register a dialect whose kernels of tanh are compiled, in three configurations; return what
    is compiled, go by go: rows and tile. ``times``: microseconds of a run, by rows and tile.
    """
    goes: list[list[tuple[int, int]]] = []

    def compile(sources: Sequence[tuple[int, int]]) -> list[CompiledKernel]:
        goes.append(list(sources))
        if (3, 4) in sources:
            raise RuntimeError("4 does not fit 3")
        return [CompiledKernel(kernel(*source)) for source in sources]

    def kernel(rows: int, tile: int) -> Any:
        def run(x: torch.Tensor) -> torch.Tensor:
            fakes.clock.spend(f"{name} {rows} {tile}", times(rows, tile))
            return torch.tanh(x)

        return run

    def make(values: CallValues) -> OpEnv:
        (x,) = values.tensors()
        rows = x.static_shape[0]

        def env(tile: int) -> OpEnv:
            return OpEnv(Deferred((rows, tile), compile), True)

        listed = [(("tile", tile),) for tile in TILES]
        made = env(0)
        made.configs = Configs(lambda: listed, lambda config: env(int(config[0][1])))
        return made

    fakes.dialect(name, plevel=plevel).op(meta.tanh)(make)
    return goes


def times(costs: Any) -> dict[str, float | str]:
    return {c.name: c.refused or round(c.forward.median, 6) for c in costs if "fake" in c.name}


def test_what_several_need_is_compiled_in_one_go(fakes: Fakes) -> None:
    goes = compiling(fakes, "fake", HANDWRITTEN, lambda rows, tile: 10.0 * rows + tile)
    rules = Rules(clock=fakes.clock, dialect="fake")
    together = benchmarks([(subject(rows), rules) for rows in (5, 6, 7)])
    assert goes == [
        [(5, 0), (6, 0), (7, 0)],
        [(rows, tile) for rows in (5, 6, 7) for tile in TILES],
    ]
    alone = [benchmark(subject(rows), rules) for rows in (5, 6, 7)]
    assert [times(costs) for costs in together] == [times(costs) for costs in alone]
    assert times(together[1]) == {
        "fake": 60.0, "fake@tile=8": 68.0, "fake@tile=4": 64.0, "fake@tile=2": 62.0,
    }  # fmt: skip


def test_one_that_cannot_be_compiled_keeps_no_other_from_it(fakes: Fakes) -> None:
    goes = compiling(fakes, "fake", HANDWRITTEN, lambda rows, tile: 10.0)
    rules = Rules(clock=fakes.clock, dialect="fake")
    found = benchmarks([(subject(rows), rules) for rows in (3, 5)])
    assert goes[2:] == [
        [(3, 8), (3, 4), (3, 2)],
        [(3, 8)],
        [(3, 4)],
        [(3, 2)],
        [(5, 8), (5, 4), (5, 2)],
    ]
    refused = {name: text for costs in found for name, text in times(costs).items() if text != 10.0}
    assert list(refused) == ["fake@tile=4"] and "4 does not fit 3" in str(refused["fake@tile=4"])


def test_without_room_for_one_the_others_are_measured(
    fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Copies(benchmark_module.Copies):
        def __init__(self, subject: Workload, values: Sequence[Any]) -> None:
            if subject.outputs[0].static_shape[0] == 6:
                raise torch.OutOfMemoryError("Tried to allocate 3.00 GiB")
            super().__init__(subject, values)

    monkeypatch.setattr(benchmark_module, "Copies", Copies)
    compiling(fakes, "fake", HANDWRITTEN, lambda rows, tile: 10.0)
    rules = Rules(clock=fakes.clock, dialect="fake")
    first, second, third = benchmarks([(subject(rows), rules) for rows in (5, 6, 7)])
    assert isinstance(second, OutOfMemory)
    assert times(first) == times(third) and len(times(first)) == 4
    given = [call(rows) for rows in (5, 6, 7)]
    found = [
        (place, len(costs) > 0) for place, costs in measure.measure_together(given, CPU, "eager")
    ]
    assert found == [(0, True), (1, False), (2, True)]


def test_who_is_far_behind_is_made_in_no_other_configuration(fakes: Fakes) -> None:
    first = compiling(fakes, "fake_first", HANDWRITTEN, lambda rows, tile: 10.0)
    near = compiling(fakes, "fake_near", LIBRARY, lambda rows, tile: 12.0)
    far = compiling(fakes, "fake_far", LIBRARY - 1, lambda rows, tile: 14.0)
    rules = Rules(clock=fakes.clock, far=1.3)
    (costs,) = benchmarks([(subject(5), rules)])
    assert not isinstance(costs, OutOfMemory)
    assert [len(goes) for goes in (first, near, far)] == [2, 2, 1]
    assert times(costs)["fake_far"] == 14.0 and "fake_far@tile=8" not in times(costs)
    last = compiling(fakes, "fake_last", LIBRARY - 2, lambda rows, tile: 5.0)
    benchmarks([(subject(5), rules)])
    assert [len(goes) for goes in (first, near, far, last)] == [3, 3, 2, 2]


def test_configurations_are_listed_only_to_be_made(
    fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str] = []

    class Listing(Configs):
        def __getattribute__(self, name: str) -> Any:
            listed.extend([name] * (name == "listed"))
            return super().__getattribute__(name)

    monkeypatch.setitem(globals(), "Configs", Listing)
    compiling(fakes, "fake", HANDWRITTEN, lambda rows, tile: 10.0)
    compiling(fakes, "fake_far", LIBRARY, lambda rows, tile: 20.0)
    for rules, count in (
        ({}, 2),
        ({"far": 1.3}, 1),
        ({"compiled": 0}, 0),
        ({"dialect": "fake"}, 1),
        ({"left_out": {"fake_far": "is slow"}}, 1),
        ({"near": 1e9}, 0),
    ):
        listed.clear()
        monkeypatch.setattr(benchmark_module._Benchmark, "_near_peak", lambda *_: "is near")
        benchmarks([(subject(5), Rules(clock=fakes.clock, **rules))])
        assert len(listed) == count, rules


def test_kernels_of_libraries_have_more_configurations_than_those_of_compilers(
    fakes: Fakes,
) -> None:
    compiling(fakes, "fake_made", HANDWRITTEN, lambda rows, tile: 10.0)
    listed = [(("tile", tile),) for tile in TILES]
    fakes.kernel(
        meta.tanh, "fake_there", LIBRARY, 10.0, torch.tanh, configs=listed, made=lambda config: 9.0
    )  # fmt: skip
    (costs,) = benchmarks([(subject(5), Rules(clock=fakes.clock, configs=2, compiled=1))])
    assert not isinstance(costs, OutOfMemory)
    assert list(times(costs)) == [
        "fake_made", "fake_made@tile=8",
        "fake_there", "fake_there@tile=8", "fake_there@tile=4",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("took", "is_near", "looks"),
    [(10.5, True, 1), (15.0, False, 5), (1500.0, False, 1)],
    ids=["near", "not near", "computes"],
)
def test_nothing_else_is_made_where_the_first_is_as_fast_as_a_copy(
    took: float, is_near: bool, looks: int, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = sum(subject(5).bytes.values())
    peaks = Peaks(moved / 10.0, {"float32": 1.0}, 0.0, 0.0, measured=True)
    monkeypatch.setattr(benchmark_module, "peaks_of", lambda device: peaks)
    goes = compiling(fakes, "fake", HANDWRITTEN, lambda rows, tile: took)
    compiling(fakes, "fake_other", LIBRARY, lambda rows, tile: took / 2)
    (costs,) = benchmarks([(subject(5), Rules(clock=fakes.clock, near=0.1, iters=0))])
    refused = "was not measured: the first is within 10% of what moving its bytes takes"
    other = next(cost for cost in costs if cost.dialect == "fake_other")
    assert other.refused == (refused if is_near else "")
    assert len(goes) == (1 if is_near else 2)
    assert fakes.clock.launched.count("fake 5 0") == 1 + looks


def windows(monkeypatch: pytest.MonkeyPatch, calls: Sequence[CallValues]) -> list[list[int]]:
    """Return the rows of what is measured side by side."""
    seen: list[list[int]] = []

    def recorded(wanted: Sequence[tuple[Workload, Rules]]) -> Any:
        seen.append([subject.outputs[0].static_shape[0] for subject, _ in wanted])
        return benchmarks(wanted)

    monkeypatch.setattr(measure, "benchmarks", recorded)
    places = [place for place, _ in measure.measure_together(calls, CPU, "eager")]
    assert sorted(places) == list(range(len(calls)))
    rows = [calls[place].out.shape[0] for place in places]
    assert rows == [n for window in seen for n in window]
    return seen


def test_two_races_of_an_operator_say_who_is_far_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    assert windows(monkeypatch, [call(rows) for rows in (2, 3, 4, 5, 6)]) == [[2, 3], [4, 5, 6]]


def test_other_operators_do_not_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [call(rows) for rows in (2, 3, 4, 5)]
    types = (TensorType((9, 4), "float32"),)
    given[3:3] = [op.call_values(types, CPU) for op in (meta.op.exp, meta.op.relu)]
    assert windows(monkeypatch, given) == [[2, 3, 9, 9], [4, 5]]


def test_one_race_says_nothing_of_who_was_far_behind_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {("tanh", "torch", CPU): -2, ("tanh", "elsewhere", CPU): 1}
    monkeypatch.setattr(measure, "_hopeless", known)
    assert windows(monkeypatch, [call(rows) for rows in (2, 3, 4)]) == [[2, 3], [4]]
    known["tanh", "elsewhere", CPU] = 2
    assert windows(monkeypatch, [call(rows) for rows in (2, 3, 4)]) == [[2, 3, 4]]


def test_there_is_room_for_all_that_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(measure.MOST_BYTES, "cpu", 600)
    monkeypatch.setattr(measure, "_hopeless", {("tanh", "torch", CPU): -2})
    rows = (2, 4, 4, 90, 5, 6)  # 32 bytes each, in and out
    assert windows(monkeypatch, [call(n) for n in rows]) == [[2, 4, 4], [90], [5, 6]]


def test_no_more_begin_than_there_are_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_hopeless", {("tanh", "torch", CPU): -2})
    left = iter([3.4, 2.2, 1.5, 0.7, 0.2, -1.0])
    monkeypatch.setattr(CostChooser, "remaining", lambda self: next(left))
    seen: list[int] = []

    def recorded(wanted: Any) -> Any:
        seen.append(len(wanted))
        return benchmarks(wanted)

    monkeypatch.setattr(measure, "benchmarks", recorded)
    costs = list(measure.measure_together([call(rows) for rows in range(2, 12)], CPU, "eager"))
    assert seen == [3, 1, 1] and len(costs) == 5


def test_of_calls_that_may_fuse_others_are_made_later(fakes: Fakes) -> None:
    goes = compiling(fakes, "fake", HANDWRITTEN, lambda rows, tile: 10.0)
    tanh = DIALECTS["fake"].ops["tanh"]
    whole = [[(5, 0)], [(5, tile) for tile in TILES]]
    for fusion, breadth, expected in (
        (None, Breadth.LIBRARIES, whole[:1]),
        (None, Breadth.UNFUSED, whole),
        ("elemwise", Breadth.UNFUSED, whole[:1]),
        ("elemwise", Breadth.ALL, whole),
        ("out_elemwise_fusable", Breadth.UNFUSED, whole),
    ):
        tanh.fusion = fusion
        tanh.dialect.fuse = lambda function, device: OpEnv(torch.tanh, True)
        goes.clear()
        with configurations(breadth), meta.dialect.only("fake"):
            ((_, costs),) = measure.measure_together([call(5)], CPU, "eager")
        assert goes == expected, (fusion, breadth)
        assert len(times(costs)) == (4 if expected == whole else 1)
