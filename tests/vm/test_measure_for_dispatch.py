"""Measuring as dispatch asks for it (META_TUNE=on): of operator calls and of fused functions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base.device import CPU
from meta.base.errors import OutOfMemory
from meta.cost.chooser import chooser
from meta.cost.store import clear_memory, races
from meta.dialect import HANDWRITTEN
from meta.dialect.core import FUSED, Configs, OpEnv, dispatch
from meta.ir import TensorType, parse
from meta.vm.benchmark.benchmark import Rules, benchmark
from meta.vm.benchmark.measure import measure_together
from meta.vm.benchmark.workload import function_workload
from tests.vm.fakes import Fakes

X = TensorType((8, 4), "float32")


@pytest.fixture(autouse=True)
def torch_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All dialects take part here, and what is kept is the test's own."""
    monkeypatch.setenv("META_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("META_TUNE", "cached")
    monkeypatch.setattr("meta.vm.benchmark.measure._hopeless", {})
    clear_memory()
    yield
    clear_memory()


def test_dispatch_measures_and_chooses(fakes: Fakes) -> None:
    def slow(x: torch.Tensor) -> torch.Tensor:
        for _ in range(200):
            y = torch.tanh(x)
        return y

    def wrong(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    fakes.kernel(meta.tanh, "fake_slow", HANDWRITTEN + 2, 0.0, slow)
    fakes.kernel(meta.tanh, "fake_wrong", HANDWRITTEN + 1, 0.0, wrong)
    assert chooser().measurer is measure_together
    call = meta.tanh.call_values((X,), CPU)
    before = dispatch(call).dialect_op
    assert before is not None and before.dialect.name == "fake_slow"
    with meta.cost.measured():
        chosen = dispatch(call).dialect_op
    assert chosen is not None and chosen.dialect.name in ("torch", "tvm")
    (kept,) = (race for race in races(CPU) if not race.bucket)
    found = {cost.dialect: cost for cost in kept.costs}
    assert list(found)[:2] == ["fake_slow", "fake_wrong"]
    assert "is wrong, if fake_slow is right" in found["fake_wrong"].refused
    again = dispatch(call).dialect_op
    assert again is chosen, "what is kept is used without measuring"


def test_a_program_is_measured_and_computes_the_same() -> None:
    x = meta.array(np.random.default_rng(0).standard_normal((64, 64), "float32"))

    def network(x: Any) -> Any:
        return meta.softmax(meta.tanh(meta.matmul(x, x)) * 2.0 + 1.0)

    expected = network(x).numpy()
    with meta.cost.measured():
        compiled = meta.vm.compile(meta.model.trace(network), x)
    found = compiled(x).numpy()
    assert np.allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert any(race.key.operator == "matmul" for race in races(CPU))


FUNCTION = """
func @main(%x: float32[8, 4], %i: int64[3]) -> float32[3, 4] {
  %0: float32[8, 4] = tanh(%x)
  %1: float32[3, 4] = take(%0, %i, axis=0, mode="raise")
  return %1
}
"""


def fused(dialect: str) -> Any:
    function = parse(FUNCTION).main
    return type(function)(function.params, function.body, function.result_type, {FUSED: dialect})


def test_a_fused_function_is_raced_in_its_configurations(fakes: Fakes) -> None:
    seen: list[torch.Tensor] = []

    def kernel(label: str, microseconds: float, factor: float = 1.0) -> Any:
        def run(x: torch.Tensor, i: torch.Tensor, out: torch.Tensor) -> None:
            fakes.clock.spend(label, microseconds)
            seen.append(i.clone())
            out.copy_(torch.tanh(x)[i] * factor)

        return run

    configs = [(("tile", 1),), (("tile", 2),)]
    made = {
        configs[0]: kernel("one", 5.0),
        configs[1]: kernel("two", 1.0, 1.5),
    }
    listed = Configs(lambda: configs, lambda config: OpEnv(made[config], False))
    dialect = fakes.dialect("fake_fusing")
    dialect.fuse = lambda function, device: OpEnv(kernel("zero", 9.0), False, configs=listed)
    subject = function_workload(fused("fake_fusing"), CPU)
    assert subject.title.startswith("tanh+take(float32[8, 4], int64[3]) -> float32[3, 4]")
    costs = benchmark(subject, Rules(clock=fakes.clock))
    assert [cost.name for cost in costs] == [
        "fake_fusing", "fake_fusing@tile=1", "fake_fusing@tile=2",
    ]  # fmt: skip
    times = [cost.forward and round(cost.forward.median, 6) for cost in costs]
    assert times == [9.0, 5.0, None] and "is wrong" in costs[2].refused
    assert all(0 <= int(i.min()) and int(i.max()) < 8 for i in seen)
    assert costs[0].bytes["inputs"] == 8 * 4 * 4 + 3 * 8 and costs[0].bytes["outputs"] == 48


def test_a_fused_function_of_generated_code_is_measured() -> None:
    traced = meta.model.trace(lambda x: meta.tanh(x * 2.0) + 1.0)
    compiled = meta.vm.compile(traced, X)
    functions = compiled.program.module().functions
    (function,) = (f for f in functions.values() if FUSED in f.attrs)
    ((_, (cost,)),) = measure_together([function], CPU, "eager")
    assert cost.dialect == function.attrs[FUSED] and not cost.refused
    assert cost.forward is not None and cost.forward.median > 0
    assert cost.bytes["inputs"] == cost.bytes["outputs"] == 128


def test_without_room_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("Tried to allocate 3.00 GiB")

    monkeypatch.setattr("meta.vm.benchmark.benchmark.Copies", full)
    with pytest.raises(OutOfMemory, match="the arguments and results of what is measured"):
        meta.measure(meta.tanh, X)
    with meta.cost.measured():
        assert dispatch(meta.tanh.call_values((X,), CPU)).dialect_op is not None


def test_inference_mode_of_torch_makes_no_difference() -> None:
    adam = meta.op.adam
    with torch.inference_mode():
        costs = meta.measure(adam, X, X, X, X, 1, 0.1, iters=2, dialect="torch")
    assert [cost.refused for cost in costs] == [""]


def test_who_is_far_behind_is_left_out(fakes: Fakes) -> None:
    """After two races of an operator; who was close in one takes part in all."""

    def slow(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2000):
            y = torch.tanh(x)
        return y

    fakes.kernel(meta.tanh, "fake_slow", HANDWRITTEN, 0.0, slow)

    def refusal(rows: int) -> str:
        call = meta.tanh.call_values((TensorType((rows, 4), "float32"),), CPU)
        ((_, found),) = measure_together([call], CPU, "eager")
        return next(c.refused for c in found if c.dialect == "fake_slow")

    # The first in the order of dispatch is always made: the others are compared with it.
    assert [refusal(2), refusal(3), refusal(4)] == ["", "", ""]
    with meta.dialect.prefer("torch"):
        assert "3 times as slow in 3 races" in refusal(5)


def test_on_the_cpu_the_choice_of_programs_is_measured_first() -> None:
    """An eager call takes what needs no compiling; one race decides for both."""
    call = meta.relu.call_values((TensorType((64, 64), "float32"),), CPU)
    of_programs, eager = dispatch(call).dialect_op, dispatch(call, eager=True).dialect_op
    assert of_programs is not None and eager is not None
    assert (of_programs.dialect.name, eager.dialect.name) == ("tvm", "torch")
    for how in ("graph", "eager"):
        ((_, costs),) = measure_together([call], CPU, how)
        first = next(c for c in costs if not c.refused)  # kernels for GPUs may be known, too
        assert first.dialect == "tvm" and first.forward is not None
