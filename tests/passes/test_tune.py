"""Measuring for a program: what is measured before calls are fused, and what after it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import meta
from meta.base import config
from meta.base.device import CPU
from meta.cost.chooser import chooser, known_race
from meta.cost.record import Breadth, Cost, key_of
from meta.cost.store import clear_memory, save
from meta.dialect.core import FUSED
from meta.ir import Function, Module, TensorType, parse, text
from meta.passes import configure, dispatch, split_patterns, tune
from meta.passes.tune import measure
from meta.vm.compilation import _measured
from tests.cost import fake_costs
from tests.cost.fake_costs import cost, timing

STEPS = parse("""
func @main(%x: float32[64, 100]) -> float32[64, 100] {
  %a: float32[64, 100] = tvm.exp(%x)
  %b: float32[64, 100] = torch.cumsum(%a, axis=1)
  %c: float32[64, 100] = tvm.tanh@parallel=1(%b)
  return %c
}""")
FAST = (("parallel", 0),)


@pytest.fixture(autouse=True)
def own_costs(tmp_path: Path) -> Iterator[None]:
    with fake_costs.store(tmp_path), meta.dialect.only("tvm", "torch"):
        yield


def keep_config(subject: Any, dialect: str = "tvm") -> None:
    costs = [Cost(dialect, (), timing(10.0)), Cost(dialect, FAST, timing(5.0))]
    save(key_of(subject, CPU, "eager"), costs, anew=True)


def test_a_kernel_that_fuses_with_nobody_has_its_configuration() -> None:
    assert text(configure(STEPS, device=CPU)) == text(STEPS)
    exp = meta.exp.call_values(tuple(STEPS.main.params[0].type for _ in range(1)), CPU)
    keep_config(exp)
    found = text(configure(STEPS, device=CPU))
    assert "tvm.exp@parallel=0(%x)" in found
    assert "tvm.tanh@parallel=1(" in found, "what is stated stays"
    with config.override(META_TUNE="off"):
        assert configure(STEPS, device=CPU) is STEPS
    with config.override(META_CACHE=False):  # what is kept in memory alone counts, too
        clear_memory()
        assert text(configure(STEPS, device=CPU)) == text(STEPS)
        keep_config(exp)
        assert "tvm.exp@parallel=0(%x)" in text(configure(STEPS, device=CPU))
    # Another dialect may be faster: which one runs it is not decided here.
    costs = [cost("torch", 1.0), cost("tvm", 10.0)]
    save(key_of(exp, CPU, "eager"), costs, anew=True)
    assert text(configure(STEPS, device=CPU)) == text(STEPS)


def asked_by(measured_by: Any) -> list[tuple[str, Breadth]]:
    """Return what is measured from now on: names, and whose configurations."""
    asked: list[tuple[str, Breadth]] = []

    def measurer(subjects: Any, device: Any, how: str) -> Iterator[tuple[int, list[Cost]]]:
        for place, subject in enumerate(subjects):
            is_function = isinstance(subject, Function)
            name = subject.attrs[FUSED] if is_function else subject.op.name
            asked.append((f"fused by {name}" if is_function else name, chooser().breadth))
            yield place, [cost(name, 5.0) for name in ("tvm", "torch")]

    measured_by(measurer)
    return asked


def test_configurations_are_measured_of_what_is_there_in_the_end(
    measured_by: Any,
) -> None:
    asked = asked_by(measured_by)

    def network(x: Any) -> Any:
        return meta.cumsum(meta.tanh(x) * 2.0, axis=1) + 1.0

    x = meta.ones((64, 100))
    with (
        config.override(META_PROGRAM_CACHE=False),
        meta.cost.measured(),
        meta.dialect.prefer("tvm"),
    ):
        meta.vm.compile(meta.model.trace(network), x)
        before = [one for one in asked if one[1] == Breadth.UNFUSED]
        after = [one for one in asked if one[1] == Breadth.ALL]
        assert {name for name, _ in before} == {"tanh", "multiply", "cumsum", "add"}
        assert len(asked) == len(before) + len(after) == len(set(asked))
        assert ("fused by tvm", Breadth.ALL) in after
        count = len(asked)
        meta.vm.compile(meta.model.trace(network), x)
        assert len(asked) == count, "all of it is known"


def test_dispatch_is_content_with_defaults(measured_by: Any) -> None:
    asked = asked_by(measured_by)
    module = parse("""
    func @main(%x: float32[64, 100]) -> float32[64, 100] {
      %a: float32[64, 100] = exp(%x)
      return %a
    }""")
    with meta.cost.measured():
        made = dispatch(tune(module, device=CPU), device=CPU)
        assert asked == [("exp", Breadth.UNFUSED)]
        configure(made, device=CPU)
        assert asked[1:] in ([], [("exp", Breadth.ALL)])
    exp = meta.exp.call_values((module.main.params[0].type,), CPU)
    race = known_race(exp, CPU, "eager")
    assert race is not None and race.breadth == asked[-1][1]


def test_patterns_and_their_calls_are_measured_together(measured_by: Any) -> None:
    seen: list[int] = []
    asked = asked_by(measured_by)
    measurer = chooser().measurer

    def counted(subjects: Any, *rest: Any) -> Any:
        seen.append(len(subjects))
        return measurer(subjects, *rest)

    measured_by(counted)
    pattern = """
    func @NAME(%x: float32[ROWS, 16], %w: float32[8, 16], %b: float32[8]) -> float32[ROWS, 8]
        attrs(fused="torch", kernel="dense_bias_add") {
      %0: float32[ROWS, 8] = dense(%x, %w)
      %1: float32[ROWS, 8] = bias_add(%0, %b, axis=-1)
      return %1
    }
    """
    main = """
    func @main(%x: float32[4, 16], %y: float32[6, 16], %w: float32[8, 16], %b: float32[8])
        -> (float32[4, 8], float32[6, 8]) {
      %0: float32[4, 8] = @one(%x, %w, %b)
      %1: float32[6, 8] = @two(%y, %w, %b)
      return (%0, %1)
    }"""
    functions = [
        pattern.replace("NAME", n).replace("ROWS", r) for n, r in (("one", "4"), ("two", "6"))
    ]
    module = parse("".join([*functions, main]))
    with meta.cost.measured():
        split_patterns(module, device=CPU)
    assert seen == [2, 2]
    assert [name for name, _ in asked] == ["fused by torch"] * 2 + ["dense"] * 2


def test_nothing_is_measured_unless_it_is_asked_for(measured_by: Any) -> None:
    asked = asked_by(measured_by)
    module = Module({"main": replace(STEPS.main)})
    assert tune(module, device=CPU) is module
    measure([meta.exp.call_values((STEPS.main.params[0].type,), CPU)], CPU)
    assert not asked


def test_a_second_process_would_measure_nothing() -> None:
    """With real times, whichever kernels and layouts they choose."""
    x = meta.ones((2, 8, 12, 12))
    w, v = meta.ones((8, 8, 3, 3)) * 0.1, meta.ones((8, 8, 1, 1)) * 0.1

    def network(x: Any) -> Any:
        y = meta.relu(meta.conv2d(x, w, padding=1)) + x
        return meta.mean(meta.conv2d(meta.tanh(y), v) * 2.0, axis=1)

    expected = network(x).numpy()
    with config.override(META_PROGRAM_CACHE=False), meta.cost.measured() as first:
        run = meta.vm.compile(meta.model.trace(network), x)
        assert first.races > 4
        with meta.cost.measured() as second:
            again = meta.vm.compile(meta.model.trace(network), x)
        assert second.races == 0
    assert abs(run(x).numpy() - expected).max() < 1e-4
    assert str(again.module) == str(run.module)


def test_a_model_whose_weights_are_prepared_is_tuned(measured_by: Any) -> None:
    """Patterns are split in a program beside which there is one that runs once."""

    class Net(meta.Model):
        def build(self) -> None:
            self.conv = meta.model.Conv2d(3, 8, 3, padding=1)
            self.norm = meta.model.BatchNorm(8)
            self.head = meta.model.Linear(8, 5)

        @meta.model.trace
        def forward(self, x: Any) -> Any:
            y = meta.relu(self.norm(self.conv(x)))
            return meta.softmax(self.head(meta.mean(y, axis=(2, 3))))

    def slow_patterns(subjects: Any, device: Any, how: str) -> Iterator[tuple[int, list[Cost]]]:
        for place, subject in enumerate(subjects):
            time = 50.0 if isinstance(subject, Function) else 5.0
            yield place, [cost(name, time) for name in ("tvm", "torch")]

    measured_by(slow_patterns)
    meta.random.seed(0)
    model, x = Net().eval(), meta.ones((2, 3, 8, 8))
    expected = model(x).numpy()
    with config.override(META_PROGRAM_CACHE=False), meta.cost.measured():
        run = meta.vm.compile(model, x)
    assert "prepare" in run.module.functions
    assert abs(run(x).numpy() - expected).max() < 1e-5


def test_a_program_is_planned_until_nothing_is_left_to_be_measured(
    measured_by: Any,
) -> None:
    asked, runs = asked_by(measured_by), 0
    calls = [meta.exp.call_values((TensorType((n,), "float32"),), CPU) for n in range(1, 9)]

    def passes(module: Module) -> Module:
        nonlocal runs
        measure(calls[runs : runs + 1] if runs < last else [], CPU)
        runs += 1
        return module

    for last, expected in ((0, 2), (1, 2), (3, 4), (8, 5)):
        asked.clear()
        runs = 0
        clear_memory()
        with config.override(META_CACHE=False), meta.cost.measured():
            _measured(passes, STEPS)  # type: ignore[arg-type]
        assert runs == expected, last
    runs, last = 0, 8
    with meta.cost.measured(budget=0.0):
        _measured(passes, STEPS)  # type: ignore[arg-type]
    assert runs == 2, "the time is up"
