"""Choosing by what was measured: the rule, the files, dispatch; with fake dialects and times."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import meta
from meta.base import caches, config
from meta.base.device import CPU
from meta.base.errors import ArgumentError, DispatchError
from meta.cost import store
from meta.cost.chooser import chooser, configurations, measure_missing, measured, race_of
from meta.cost.record import MARGIN, Breadth, Cost, Timing, bucket_of, choose, key_of
from meta.cost.store import clear_memory, find, generation, read_race, save
from meta.dialect import Dialect, OpEnv, Unsupported, exclude, only, prefer
from meta.dialect.core import FUSED, Config, Configs, dispatch
from meta.dialect.core.dispatch import answers
from meta.dialect.core.preference import current, forget
from meta.ir import Binding, Block, Call, Function, Var, parse, text
from meta.ir.types import TensorType
from meta.op.core import CallValues
from tests.cost.fake_costs import cost, timing
from tests.registered import remove_dialects

X = TensorType((64, 128), "float32")
TURN: Config = (("turn", 3),)


def call(*shape: int) -> CallValues:
    made = TensorType(shape, "float32") if shape else X
    return meta.op.relu.call_values((made,), CPU)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    with config.override(META_CACHE_DIR=str(tmp_path), META_CACHE=True, META_TUNE="cached"):
        forget()
        yield tmp_path
    forget()


@pytest.fixture
def mine() -> Iterator[Dialect]:
    """A dialect with a kernel of relu that can be launched in another way."""
    made = Dialect("mine", devices=("cpu",), plevel=12)

    def kernel(config: Config) -> OpEnv:
        def run(x: torch.Tensor, out: torch.Tensor) -> None:
            out.copy_(torch.relu(x))

        def other(wanted: Config) -> OpEnv:
            if wanted != TURN:
                raise Unsupported("no such turn")
            return kernel(wanted)

        return OpEnv(run, allocates=False, configs=Configs(lambda: [TURN], other))

    @made.op(meta.op.relu)
    def relu(values: CallValues) -> OpEnv:
        return kernel(())

    yield made
    remove_dialects(made)


class TestRule:
    ORDER = ("a", "b", "c")

    @pytest.mark.parametrize(
        ("costs", "chosen"),
        [
            ([cost("a", 10.0), cost("b", 5.0)], "b"),
            ([cost("a", 10.0), cost("b", 9.8)], "a"),  # within the margin
            ([cost("a", 10.0), cost("b", 10.0 * (1 - MARGIN))], "a"),
            ([cost("a", 10.0), cost("b", 5.0), cost("c", 5.0)], "b"),  # a tie: the first
            ([cost("a", 10.0), cost("b", 5.0), cost("c", 4.0)], "c"),
            ([cost("a", 10.0), cost("a", 6.0, TURN), cost("b", 7.0)], "a@turn=3"),
            ([cost("a", 10.0), cost("b", None, refused="wrong"), cost("c", 20.0)], "a"),
            ([cost("a", None, refused="no"), cost("b", 5.0), cost("c", 5.1)], "b"),
        ],
    )
    def test_chooses(self, costs: list[Cost], chosen: str) -> None:
        found = choose(costs, self.ORDER)
        assert found is not None
        assert found.name == chosen

    def test_a_wide_spread_does_not_win(self) -> None:
        """The 20th percentile of the other has to be below that of the first."""
        steady = replace(cost("a", 10.0), forward=Timing(10.0, 9.0, 11.0, 20))
        other = replace(cost("b", 9.5), forward=Timing(9.5, 9.2, 14.0, 20))
        assert choose([steady, other], self.ORDER) == steady

    def test_nothing_is_chosen_if_the_first_was_not_timed(self) -> None:
        assert choose([cost("a", None), cost("b", 5.0)], self.ORDER) is None
        assert choose([], self.ORDER) is None
        assert choose([cost("b", 5.0)], ("a",)) is None

    @given(
        times=st.lists(st.floats(0.1, 1000.0), min_size=1, max_size=6),
        spread=st.floats(0.0, 0.5),
        seed=st.randoms(),
    )
    def test_never_slower_and_the_same_twice(self, times, spread, seed) -> None:
        order = [f"d{i}" for i in range(len(times))]
        costs = [Cost(n, forward=timing(t, spread)) for n, t in zip(order, times, strict=True)]
        found = choose(costs, order)
        assert found is not None and found.forward is not None
        assert found.forward.median <= times[0]
        shuffled = list(costs)
        seed.shuffle(shuffled)
        assert choose(shuffled, order) == found


class TestKeys:
    def test_values_of_numbers_do_not_count(self) -> None:
        def key(value: float) -> object:
            made = meta.op.multiply.call_values((X, value), CPU)
            return key_of(made, CPU, "eager")

        assert key(1.5) == key(2.5)
        assert key(1.5) != key(2)

    def test_types_and_attributes_count(self) -> None:
        def key(axis: int, type_: TensorType = X) -> object:
            return key_of(meta.op.softmax.call_values((type_, axis), CPU), CPU, "eager")

        assert key(0) != key(1)
        assert key(1) != key(1, TensorType((64, 129), "float32"))
        assert key(1) != key(1, TensorType((64, 128), "float64"))

    def test_buckets_keep_alignment(self) -> None:
        def bucket(*shape: int) -> object:
            return bucket_of(call(*shape), CPU, "eager")

        assert bucket(60, 128) == bucket(64, 112)
        assert bucket(60, 128) != bucket(64, 127)
        assert bucket(60, 128) != bucket(65, 128)
        assert bucket(0, 8) != bucket(1, 8) != bucket(2, 8)
        assert bucket(96, 128) != bucket(97, 128)

    def test_a_function_does_not_depend_on_names(self) -> None:
        def key(*names: str) -> object:
            types = dict.fromkeys(names, X)
            x, y, z = (Var(n, t) for n, t in types.items())
            relu, tanh = meta.op.tvm.relu, meta.op.tvm.tanh
            body = Block((Binding(y, Call(relu, (x,))), Binding(z, Call(tanh, (y,)))), z)
            return key_of(Function((x,), body, X, {FUSED: "tvm"}), CPU, "eager")

        assert key("a", "b", "c") == key("x", "y", "z")


class TestFiles:
    COSTS = (cost("torch", 10.0, bytes={"inputs": 3}), cost("tvm", 5.0, TURN, host=1.5))

    def kept(self, anew: bool = False, costs: Sequence[Cost] = COSTS) -> Path:
        place = save(key_of(call(), CPU, "eager"), costs, anew=anew).place
        assert place is not None
        store.clear_memory()
        return place

    def found(self) -> store.Race | None:
        store.clear_memory()
        return find(key_of(call(), CPU, "eager"))

    def test_round_trip(self) -> None:
        self.kept()
        race = self.found()
        assert race is not None
        plain = tuple(replace(c, source="") for c in race.costs)
        assert plain == self.COSTS

    def test_environment_is_written_beside_it(self) -> None:
        description = self.kept().parent / store.DESCRIPTION
        assert json.loads(description.read_text())["torch"] == torch.__version__

    @pytest.mark.parametrize(
        "damage",
        [
            lambda t: t[: len(t) // 2],
            lambda t: t.replace('"tvm"', '"cudnn"'),
            lambda t: t.replace("10.0", "0.1"),
            lambda t: "[]",
            lambda t: "",
            lambda t: "[" * 100_000,
            lambda t: json.dumps({**json.loads(t), "format": 99}),
            lambda t: "\x00" * 100,
        ],
    )
    def test_damage_is_a_miss(self, damage) -> None:
        place = self.kept()
        place.write_text(damage(place.read_text()))
        assert self.found() is None
        assert self.kept() == place  # and is replaced
        assert self.found() is not None

    @pytest.mark.parametrize(
        "costs",
        [
            [replace(COSTS[0], forward=Timing(-1.0, -1.0, -1.0, 3))],
            [replace(COSTS[0], forward=Timing(1.0, 2.0, 0.5, 3))],
            [replace(COSTS[0], host=float("nan"))],
        ],
    )
    def test_poison_is_a_miss(self, costs: list[Cost]) -> None:
        """A file that is whole, with times that cannot be."""
        self.kept(costs=costs)
        assert self.found() is None

    def test_another_key_is_a_miss(self) -> None:
        place = self.kept()
        other = key_of(call(3, 5), CPU, "eager")
        (place.parent / other.file).write_text(place.read_text())
        assert find(other) is None

    def test_what_others_may_write_is_a_miss(self) -> None:
        self.kept().chmod(0o666)
        assert self.found() is None

    def test_another_environment_is_a_miss(self, monkeypatch) -> None:
        self.kept()
        monkeypatch.setattr(store, "environment", lambda device: "another machine")
        assert self.found() is None

    def test_threads_are_part_of_the_environment(self) -> None:
        before = torch.get_num_threads()
        first = store.environment(CPU)
        try:
            torch.set_num_threads(before + 1)
            assert store.environment(CPU) != first
        finally:
            torch.set_num_threads(before)

    def test_another_source_is_a_miss(self, monkeypatch) -> None:
        self.kept()
        monkeypatch.setattr(store, "source_of", lambda dialect: "another")
        assert self.found() is None

    def test_the_first_that_was_kept_stays(self) -> None:
        """Two processes measured the same call: both go on with what the first found."""
        self.kept()
        self.kept(costs=[cost("torch", 1.0)])
        race = self.found()
        assert race is not None and len(race.costs) == 2
        self.kept(anew=True, costs=[cost("torch", 1.0)])
        race = self.found()
        assert race is not None and len(race.costs) == 1

    def test_a_race_of_more_configurations_replaces_one_of_fewer(self) -> None:
        key = key_of(call(), CPU, "eager")
        kept = 0.0, Breadth.LIBRARIES
        for median, breadth, stays in (
            (1.0, Breadth.LIBRARIES, False),
            (2.0, Breadth.LIBRARIES, True),
            (3.0, Breadth.UNFUSED, False),
            (4.0, Breadth.LIBRARIES, True),
            (5.0, Breadth.ALL, False),
            (6.0, Breadth.ALL, True),
        ):
            save(key, [cost("torch", median)], breadth=breadth)
            kept = kept if stays else (median, breadth)
            clear_memory()
            race = find(key)
            assert race is not None and race.costs[0].forward is not None
            assert (race.costs[0].forward.median, race.breadth) == kept

    def test_generation_changes_with_what_is_kept(self) -> None:
        assert generation(CPU) == ""
        self.kept()
        first = generation(CPU)
        self.kept()
        assert generation(CPU) == first
        self.kept(anew=True)
        assert generation(CPU) != first

    def test_no_cache_keeps_it_in_memory(self, folder: Path) -> None:
        with config.override(META_CACHE=False):
            race = save(key_of(call(), CPU, "eager"), self.COSTS)
            assert race.place is None
            assert find(race.key) == race
        assert not list(folder.iterdir())

    def test_the_cache_command_clears_it(self) -> None:
        place = self.kept()
        assert {u.cache.name: u.entries for u in caches.usage()}["costs"] == 1
        caches.clear(["costs"])
        assert not place.exists()
        assert self.found() is None

    def test_a_killed_writer_leaves_nothing_that_is_read(self, folder: Path) -> None:
        program = textwrap.dedent("""
            import os, signal, sys
            from meta.base import caches
            from tests.cost.test_costs import call, cost
            from meta.base.device import CPU
            from meta.cost.store import save
            from meta.cost.record import key_of
            def killed(*_): os.kill(os.getpid(), signal.SIGKILL)
            os.link = os.replace = killed
            save(key_of(call(), CPU, "eager"), [cost("torch", 1.0)])
        """)
        env = {**os.environ, "META_CACHE_DIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True)
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
        assert self.found() is None
        self.kept()
        assert self.found() is not None

    def test_sixteen_processes_agree(self, folder: Path) -> None:
        """All go on with one result, whoever was first."""
        with multiprocessing.get_context("fork").Pool(16) as pool:
            found = pool.map(_race_for, range(16))
        assert len(set(found)) == 1
        race = self.found()
        assert race is not None and race.costs[0].forward is not None
        assert race.costs[0].forward.median == found[0]


def _race_for(number: int) -> float:
    kept = save(key_of(call(), CPU, "eager"), [cost("torch", 1.0 + number)])
    forward = kept.costs[0].forward
    assert forward is not None
    return forward.median


class TestDispatch:
    def put(self, *costs: Cost, shape: Sequence[int] = (64, 128)) -> None:
        made = call(*shape)
        save(key_of(made, CPU, "eager"), costs, bucket=bucket_of(made, CPU, "eager"), anew=True)

    def name(self, *shape: int) -> str:
        found = dispatch(call(*shape)).dialect_op
        assert found is not None
        return found.name

    def test_priority_without_costs(self, mine: Dialect) -> None:
        assert self.name() == "mine.relu"

    def test_costs_choose(self, mine: Dialect) -> None:
        self.put(cost("mine", 10.0), cost("tvm", 9.0), cost("torch", 5.0))
        assert self.name() == "torch.relu"
        assert self.name(64, 129) == "mine.relu"

    def test_a_configuration_is_in_the_name(self, mine: Dialect) -> None:
        self.put(cost("mine", 10.0), cost("mine", 5.0, TURN), cost("torch", 7.0))
        assert self.name() == "mine.relu@turn=3"
        program = meta.vm.compile(meta.model.trace(lambda x: meta.relu(x)), X)
        assert "mine.relu@turn=3" in str(program.module)
        assert text(parse(text(program.module))) == text(program.module)
        x = torch.randn(64, 128)
        assert torch.equal(program(x).torch(), x.relu())

    def test_a_configuration_that_is_gone_is_not_an_error(self, mine: Dialect) -> None:
        self.put(cost("mine", 10.0), cost("mine", 5.0, (("turn", 4),)), cost("torch", 7.0))
        assert self.name() == "mine.relu"

    def test_neighbouring_extents(self, mine: Dialect) -> None:
        self.put(cost("mine", 10.0), cost("torch", 5.0))
        assert self.name(60, 112) == "torch.relu"
        assert self.name(60, 111) == "mine.relu"

    def test_preferences_hold(self, mine: Dialect) -> None:
        self.put(cost("mine", 10.0), cost("torch", 5.0), cost("tvm", 7.0))
        with prefer("tvm"):
            assert self.name() == "tvm.relu"
        with exclude("torch"):
            assert self.name() == "tvm.relu"
        with only("mine"):
            assert self.name() == "mine.relu"
        with config.override(META_TUNE="off"):
            assert self.name() == "mine.relu"

    def test_eager_calls_compile_nothing_for_it(self) -> None:
        self.put(cost("torch", 10.0), cost("tvm", 1.0))
        made = dispatch(call(), eager=True).dialect_op
        assert made is not None and made.name == "torch.relu"

    def test_measuring_on_request(self, mine: Dialect, measured_by: Any) -> None:
        asked = []

        def measure(subjects, device, how):
            for place, subject in enumerate(subjects):
                asked.append(str(subject))
                yield place, [cost("mine", 10.0), cost("torch", 1.0), cost("tvm", 5.0)]

        measured_by(measure)
        assert self.name() == "mine.relu"
        with measured() as spent:
            assert self.name() == "torch.relu"
            assert self.name() == "torch.relu"
        assert len(asked) == spent.races == 1
        assert self.name() == "torch.relu"  # kept
        with config.override(META_TUNE="on"):
            assert self.name(3, 5) == "torch.relu"
        assert len(asked) == 2
        with config.override(META_TUNE="off"), measured():
            assert self.name(7, 9) == "mine.relu"
        assert len(asked) == 2

    @pytest.mark.parametrize("excluded", [(), ("tvm",)])
    def test_what_lacks_configurations_is_measured_once_more(
        self, excluded: tuple[str, ...], mine: Dialect, measured_by: Any
    ) -> None:
        asked = []

        def measure(subjects, device, how):
            for place in range(len(subjects)):
                asked.append(chooser().breadth)
                yield place, [cost("mine", 10.0), cost("torch", 1.0)]

        measured_by(measure)
        with measured():
            with configurations(Breadth.LIBRARIES), configurations(Breadth.UNFUSED):
                assert race_of(call(), CPU) == race_of(call(), CPU)
            assert len(asked) == 1
            with exclude(*excluded):
                race = race_of(call(), CPU)
                assert race is not None and race.breadth == Breadth.ALL
                assert race_of(call(), CPU) == race
                with configurations(Breadth.UNFUSED):
                    assert race_of(call(), CPU) == race
        assert asked == [Breadth.LIBRARIES, Breadth.ALL]

    def test_several_are_measured_together(self, mine: Dialect, measured_by: Any) -> None:
        """Each once, and those that are known not at all; in its order, until the measurer ends."""
        asked = []

        def measure(subjects, device, how):
            asked.append([subject.out.shape for subject in subjects])
            for place in reversed(range(len(subjects[:2]))):
                yield place, [cost("mine", 10.0), cost("torch", 1.0 + place)]

        measured_by(measure)
        calls = [call(2, 3), call(4, 5), call(2, 3), call(6, 7), call(8, 9)]
        assert list(measure_missing(calls, CPU)) == [] == asked
        with measured() as spent:
            assert self.name(2, 3) == "torch.relu"
            assert list(measure_missing(calls, CPU)) == [2, 3, 4]
            assert list(measure_missing(calls, CPU)) == [4, 5]
            assert list(measure_missing(calls, CPU)) == [5]
        races = [race_of(call(*shape), CPU) for shape in ((4, 5), (6, 7))]
        assert [race.costs[1].forward.median for race in races if race] == [1.0, 2.0]
        assert asked == [[(2, 3)], [(4, 5), (6, 7), (8, 9)], [(8, 9)]]
        assert spent.races == 4

    def test_a_budget_ends_it(self, mine: Dialect, measured_by: Any) -> None:
        measured_by(lambda *_: pytest.fail("measured"))
        with measured(budget=0.0):
            assert self.name() == "mine.relu"
            assert list(measure_missing([call()], CPU)) == [0]
        with pytest.raises(ArgumentError), measured(budget=-1.0):
            pass

    def test_explain_tells_times_and_where_from(self, mine: Dialect) -> None:
        self.put(cost("mine", 10.0), cost("torch", 5.0), cost("mine", 8.0, TURN))
        told = meta.explain(meta.op.relu, X)
        lines = str(told).splitlines()
        chosen = next(line for line in lines if line.startswith("->"))
        assert "torch" in chosen
        assert "5.00 us (4.75 to 5.25, 20 samples)" in chosen
        assert any("turn=3" in line for line in lines)
        assert lines[-1].strip().startswith("measured ")
        record = next(r for r in told.records() if r["dialect"] == "mine")
        assert record["configs"] == 1 and len(record["costs"]) == 2

    def test_a_program_keeps_its_configuration(self, mine: Dialect) -> None:
        """Instructions name it: what is kept may change afterwards."""
        with pytest.raises(DispatchError):
            dialect_op = mine.ops["relu"].configured((("turn", 9),))
            with only("mine"):
                dialect_op(meta.ones((2, 3)))
        mine.ops["relu"].configured(TURN)(meta.ones((2, 3)))


def test_read_race_takes_any_text() -> None:
    for content in ("", "{}", "null", '{"digest": 1}', "1e999"):
        assert read_race(content, None, None) is None


def test_what_is_excluded_is_not_measured(folder: Path, mine: Dialect, measured_by: Any) -> None:
    """The race of the others is one of its own, and counts only there."""
    asked = []

    def measure(subjects, device, how):
        (subject,) = subjects
        taking_part = [str(a.dialect_op.dialect.name) for a in answers(subject, current()) if a.env]
        asked.append(taking_part)
        yield 0, [cost(name, 10.0 - i) for i, name in enumerate(taking_part)]

    measured_by(measure)
    with exclude("mine"), measured():
        name = dispatch(call()).dialect_op
    assert asked == [["tvm", "torch"]]
    assert name is not None and name.name == "torch.relu"
    assert "mine.relu" == str(dispatch(call()).dialect_op.name)  # type: ignore[union-attr]
    with exclude("mine"):
        assert "torch.relu" == str(dispatch(call()).dialect_op.name)  # type: ignore[union-attr]


def test_no_room_to_measure_is_no_result(folder: Path, mine: Dialect, measured_by: Any) -> None:
    measured_by(lambda *_: [(0, [])])
    with measured():
        dispatch(call())
    assert find(key_of(call(), CPU, "eager")) is None
