"""Kernels planned for whole programs, by costs that nobody measured."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings

import meta
from meta.base import config
from meta.base.device import CPU, Device
from meta.cost.chooser import chooses, choosing
from meta.dialect.core import Dialect, DialectOp
from meta.dialect.core.preference import forget
from meta.ir import Block, Call, Module, bindings, parse, text, verify
from meta.ir.visit import inner_blocks
from meta.op.core import CallValues
from meta.passes import (
    configure,
    dispatch,
    fuse_operators,
    infer_type,
    inplace_update,
    plan_dialects,
)
from meta.passes.plan_dialects import Planner
from meta.vm.compiler.pipeline import pipeline
from meta.vm.run.interpreter import run_module
from tests.cost import fake_costs
from tests.cost.fake_costs import keep_peaks, measure
from tests.programs.operators import ROWS
from tests.programs.prefixes import _differences, inputs, outcome
from tests.programs.test_programs import ALL, TVM_ROWS, drawn, steps, wanted
from tests.programs.writer import Step, write_module
from tests.registered import remove_dialects

HEAD = "%x: float32[64, 100]"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[None]:
    with fake_costs.store(tmp_path), meta.dialect.only("torch", "tvm"):
        yield


def program(*lines: str, head: str = HEAD) -> Module:
    body = "\n".join((*lines, f"return {lines[-1].split(' ')[0]}"))
    return infer_type(parse(f"func @main({head}) {{\n{body}\n}}"))


def kernels(module: Module) -> list[str]:
    """Return the dialects of the calls of a program, in order; "" for one that is open."""
    values = [b.value for f in module.functions.values() for b in bindings(f)]
    return [
        v.callee.dialect.name if isinstance(v.callee, DialectOp) else ""
        for v in values
        if isinstance(v, Call)
    ]


def times(**by_operator: tuple[float, float]) -> Any:
    """Return the times of operators on tvm and on torch."""

    def time(call: CallValues, dialect: str) -> float | None:
        return by_operator[call.op.name][("tvm", "torch").index(dialect)]

    return time


CHAIN = program("%a = exp(%x)", "%b = tanh(%a)", "%c = negative(%b)")
FASTER_INSIDE = times(exp=(10.0, 20.0), tanh=(10.0, 7.0), negative=(10.0, 20.0))


def test_priority_is_tvm_here() -> None:
    assert kernels(dispatch(CHAIN, device=CPU)) == ["tvm", "tvm", "tvm"]


def test_a_slower_kernel_stays_that_fuses_with_its_neighbours() -> None:
    measure(CHAIN, FASTER_INSIDE)
    keep_peaks(copy=2 * 4 * 6400 / 5, launch=0.1)  # 5 us to write a result and to read it
    assert kernels(dispatch(CHAIN, device=CPU)) == ["tvm", "torch", "tvm"]
    planned = plan_dialects(CHAIN, device=CPU)
    assert kernels(planned) == ["tvm", "tvm", "tvm"]
    assert len(fuse_operators(planned).main.body.bindings) == 1


def test_a_faster_kernel_is_taken_if_fusion_saves_less() -> None:
    measure(CHAIN, FASTER_INSIDE)
    keep_peaks(copy=1e9, launch=0.1)
    assert kernels(plan_dialects(CHAIN, device=CPU)) == ["tvm", "torch", "tvm"]


def test_what_keeps_state_is_left_to_dispatch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gradient runs where dispatch lets it run."""
    measure(CHAIN, times(exp=(10.0, 7.0), tanh=(10.0, 7.0), negative=(10.0, 7.0)))
    keep_peaks(copy=1e9, launch=0.1)
    assert kernels(plan_dialects(CHAIN, device=CPU)) == ["torch", "torch", "torch"]
    monkeypatch.setattr(meta.op.tvm.exp, "init", object())
    forget()  # as registering does
    assert kernels(plan_dialects(CHAIN, device=CPU)) == ["", "torch", "torch"]


def test_a_neighbour_that_was_not_measured_fuses_as_well() -> None:
    one, both = program("%a = exp(%x)"), program("%a = exp(%x)", "%b = tanh(%a)")
    measure(one, times(exp=(10.0, 7.0)))
    keep_peaks(copy=2 * 4 * 6400 / 5, launch=0.1)
    assert kernels(plan_dialects(one, device=CPU)) == ["torch"]
    assert kernels(plan_dialects(both, device=CPU)) == ["tvm", ""]
    keep_peaks(copy=1e9, launch=0.1)
    assert kernels(plan_dialects(both, device=CPU)) == ["torch", ""]


def test_a_result_that_others_read_is_written_anyway() -> None:
    """Only to read it back is saved, by the reader in the same kernel."""
    shared = program("%a = exp(%x)", "%b = tanh(%a)", "%c = cumsum(%a, axis=1)", "%d = (%b, %c)")
    measure(shared, times(exp=(10.0, 20.0), tanh=(10.0, 6.0), cumsum=(9.0, 10.0)))
    keep_peaks(copy=4 * 6400 / 3, launch=0.1)
    assert kernels(plan_dialects(shared, device=CPU))[1] == "torch"
    keep_peaks(copy=4 * 6400 / 5, launch=0.1)
    assert kernels(plan_dialects(shared, device=CPU))[1] == "tvm"


def planned_by(time: Any, fused: float | None) -> list[str]:
    """Return the kernels of the chain, where the kernels that fusion makes take so long."""
    measure(CHAIN, time)
    found: list[Module] = []

    def lower(module: Module) -> Module:
        lowered = fuse_operators(dispatch(module, device=CPU))
        found.append(lowered)
        for function in lowered.functions.values():
            if "fused" in function.attrs and fused is not None:
                fake_costs.keep_costs(function, {"tvm": fused})
        return lowered

    return kernels(plan_dialects(CHAIN, device=CPU, lower=lower))


def test_what_fusion_saves_is_measured_in_the_end() -> None:
    keep_peaks(copy=2 * 4 * 6400 / 5, launch=0.1)
    together, apart = ["tvm", "tvm", "tvm"], ["tvm", "torch", "tvm"]
    assert planned_by(FASTER_INSIDE, None) == together
    assert planned_by(FASTER_INSIDE, 26.9) == together  # hardly slower than by themselves
    assert planned_by(FASTER_INSIDE, 40.0) == apart
    keep_peaks(copy=1e9, launch=0.1)
    assert planned_by(FASTER_INSIDE, 27.5) == apart
    assert planned_by(FASTER_INSIDE, 12.0) == together  # as priority has it


def test_nothing_changes_without_costs() -> None:
    assert not chooses(CPU)
    assert plan_dialects(CHAIN, device=CPU) is CHAIN
    measure(CHAIN, FASTER_INSIDE)
    assert chooses(CPU)
    with config.override(META_TUNE="off"):
        assert plan_dialects(CHAIN, device=CPU) is CHAIN
    with choosing(races=True):  # what is made in order to be measured
        assert plan_dialects(CHAIN, device=CPU) is CHAIN
    other = program("%a = relu(%x)")
    assert text(plan_dialects(other, device=CPU)) == text(other)
    assert plan_dialects(CHAIN, device=Device("cuda:7")) is CHAIN


def test_a_call_with_an_unknown_candidate_keeps_its_choice() -> None:
    one = program("%a = exp(%x)")
    fake_costs.keep_costs(next(fake_costs.calls(one)), {"torch": 1.0})
    assert kernels(plan_dialects(one, device=CPU)) != ["tvm"]
    with meta.dialect.only("tvm"):
        assert kernels(plan_dialects(one, device=CPU)) == [""]


def test_what_is_hardly_faster_is_not_taken() -> None:
    measure(CHAIN, times(exp=(10.0, 9.8), tanh=(10.0, 9.71), negative=(10.0, 9.6)))
    keep_peaks(copy=1e9, launch=0.0001)
    assert kernels(plan_dialects(CHAIN, device=CPU)) == ["tvm", "tvm", "torch"]


def test_what_is_preferred_stays() -> None:
    measure(CHAIN, times(exp=(1.0, 20.0), tanh=(1.0, 20.0), negative=(1.0, 20.0)))
    with meta.dialect.prefer("torch"):
        assert kernels(plan_dialects(CHAIN, device=CPU)) == ["torch", "torch", "torch"]
    with meta.dialect.only("torch"):
        assert kernels(plan_dialects(CHAIN, device=CPU)) == ["torch", "torch", "torch"]


def test_equal_layers_have_equal_kernels() -> None:
    """The middle ones are equal; the first and the last have other neighbours."""
    lines = ["%a0 = dense(%x, %w)"]
    for i in range(6):
        lines += [f"%b{i} = tanh(%a{i})", f"%a{i + 1} = dense(%b{i}, %w)"]
    deep = program(*lines, head="%x: float32[64, 64], %w: float32[64, 64]")
    measure(deep, times(dense=(30.0, 20.0), tanh=(10.0, 6.0)))
    keep_peaks(copy=1e9, launch=0.1)
    planned = kernels(plan_dialects(deep, device=CPU))
    assert planned == ["torch"] * 13
    keep_peaks(copy=2 * 4 * 64 * 64 / 5, launch=0.1)
    again = kernels(plan_dialects(deep, device=CPU))
    assert len(set(again[3:-2:2])) == 1


def test_branches_that_join() -> None:
    lines = []
    for i in range(8):
        lines += [f"%a{i} = exp(%x)", f"%b{i} = tanh(%a{i})"]
    lines += ["%s1 = add(%b0, %b1)", *(f"%s{i} = add(%s{i - 1}, %b{i})" for i in range(2, 8))]
    wide = program(*lines)
    measure(wide, times(exp=(10.0, 7.0), tanh=(10.0, 7.0), add=(10.0, 30.0)))
    keep_peaks(copy=2 * 4 * 6400 / 5, launch=0.1)
    for width in (1, 4, 256):
        planned = plan_dialects(wide, device=CPU, width=width)
        verify(planned, typed=True)
        assert kernels(planned)[16:] == ["tvm"] * 7
        assert text(planned) == text(plan_dialects(wide, device=CPU, width=width))


@pytest.fixture
def on_the_host() -> Iterator[Dialect]:
    """A dialect whose kernel no CUDA graph can hold."""
    made = Dialect("on_the_host", devices=("cpu",), plevel=1)

    @made.kernel(meta.op.relu, not_capturable="it waits for the host")
    def relu(x: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(torch.relu(x))

    yield made
    remove_dialects(made)


@pytest.mark.parametrize(("launch", "taken"), [(0.5, True), (2.0, False)])
def test_a_kernel_that_breaks_a_graph_has_to_gain_more(
    launch: float, taken: bool, on_the_host: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs two launches: its own, and that of the graph that follows."""
    one = program("%a = relu(%x)")
    keep_peaks(launch=launch)
    with meta.dialect.only("torch", "on_the_host"):
        measure(one, lambda call, name: {"torch": 10.0, "on_the_host": 7.0}[name])
        assert kernels(plan_dialects(one, device=CPU)) == ["on_the_host"]
        monkeypatch.setitem(Planner.__init__.__globals__, "how_in_programs", lambda device: "graph")
        assert kernels(plan_dialects(one, device=CPU)) == ["on_the_host" if taken else "torch"]


def test_inner_blocks_and_functions_are_planned() -> None:
    module = infer_type(
        parse("""
    func @main(%p: bool[], %x: float32[64, 100]) {
      %y = if %p {
        %a = exp(%x)
        yield %a
      } else {
        %b = @other(%x)
        yield %b
      }
      return %y
    }
    func @other(%x: float32[64, 100]) {
      %a = tanh(%x)
      return %a
    }""")
    )
    measure(module, times(exp=(10.0, 5.0), tanh=(10.0, 5.0)))
    named = [name for name in kernels(plan_dialects(module, device=CPU)) if name]
    assert named == ["torch", "torch"]


def all_blocks(block: Block) -> Iterator[Block]:
    yield block
    for binding in block.bindings:
        for inner in inner_blocks(binding.value):
            yield from all_blocks(inner)


def seeded(seed: int) -> Any:
    """Return times that are random, but the same for equal calls; some candidates refuse."""

    def time(call: CallValues, dialect: str) -> float | None:
        random = Random(zlib.crc32(f"{seed} {call} {dialect}".encode()))
        return None if random.random() < 0.05 else random.uniform(1.0, 30.0)

    return time


@settings(max_examples=60, suppress_health_check=list(HealthCheck), database=None)
@given(steps(ALL), wanted, steps(["exp"]))
def test_a_plan_is_never_slower_in_the_model(
    program: list[Step], results: list[int], seed: list[Step]
) -> None:
    """Random programs over the real operators, with random costs."""
    module = infer_type(write_module(program, results, ROWS))
    measure(module, seeded(len(seed) + 100 * seed[0][1]))
    keep_peaks(copy=10.0 + seed[0][2], launch=0.1 * seed[0][3])
    planned = plan_dialects(module, device=CPU)
    verify(planned, typed=True)
    assert text(planned) == text(plan_dialects(module, device=CPU))
    planner = Planner(CPU)
    for name, function in module.functions.items():
        for block in all_blocks(function.body):
            model = planner.steps(block, planner.kernels(block))
            picks = model.plan()
            assert model.total(picks) <= model.total((0,) * len(picks)), name


@settings(max_examples=60, suppress_health_check=list(HealthCheck), database=None)
@given(steps(ALL), wanted)
def test_planned_programs_compute_the_same(program: list[Step], results: list[int]) -> None:
    """Only one dialect: whatever is measured, the kernels are those that ran before."""
    with meta.dialect.only("torch"):
        module = infer_type(write_module(program, results, ROWS))
        expected = outcome(lambda *args: run_module(module, args), module)
        measure(module, seeded(1))
        planned = plan_dialects(module, device=CPU)
        found = outcome(lambda *args: run_module(planned, args), module)
        assert not _differences(found, expected)
        run = meta.vm.compile(module, *inputs(module))
        assert not _differences(outcome(run, module), expected, 1e-6, 1e-6)


def test_programs_planned_over_two_dialects_compute_the_same() -> None:
    mixed = set()
    for seed, module in enumerate(drawn(6, TVM_ROWS, sorted(TVM_ROWS))):
        module = infer_type(module)
        expected = outcome(lambda *args, m=module: run_module(m, args), module)
        measure(module, seeded(seed))
        for lowered in [module, *lowerings(module)]:
            measure(lowered, seeded(seed))
        run = meta.vm.compile(module, *inputs(module))
        mixed |= set(kernels(run.module))
        assert not _differences(outcome(run, module), expected, 1e-4, 1e-4)
    assert mixed >= {"torch", "tvm"}


def lowerings(module: Module) -> Iterator[Module]:
    """Yield a program after each pass before its kernels are chosen."""
    for step in pipeline(CPU).passes:
        module = step(module)
        yield module


def explained(module: Module, time: Any) -> list[str]:
    """Return what the plan did to each instruction of a compiled program."""
    measure(module, time)
    run = meta.vm.compile(module, *inputs(module))
    assert not _differences(outcome(run, module), outcome(run, module))
    assert all(e.planned in str(e) for e in run.explain())
    return [e.planned for e in run.explain()]


def test_explain_says_what_was_planned() -> None:
    keep_peaks(copy=1e9, launch=0.1)
    assert explained(CHAIN, FASTER_INSIDE) == [
        "",
        "planned: 7.0 us, priority choice 10.0 us",
        "",
    ]


def test_explain_says_what_was_left_for_the_neighbours() -> None:
    """The first call does not fit into the kernel that it was to be in."""
    keep_peaks(copy=2 * 4 * 6400 / 5, launch=0.1)
    with meta.PassContext(config={"fuse_operators": {"max_members": 2}}):
        found = explained(CHAIN, times(exp=(10.0, 7.0), tanh=(10.0, 7.0), negative=(10.0, 20.0)))
    left = "planned: 10.0 us; with its neighbours faster than torch, 7.0 us by itself"
    assert found == [left, ""]


def test_configurations_are_those_of_kernels() -> None:
    """Within a fused kernel a call has none; one that is written in place keeps its own."""
    module = parse("""
    func @main(%x: float32[64, 100]) -> float32[64, 100] {
      %a: float32[64, 100] = tvm.exp@parallel=0(%x)
      %b: float32[64, 100] = tvm.tanh@parallel=0(%a)
      %c: float32[64, 100] = torch.cumsum(%b, axis=1)
      %d: float32[64, 100] = tvm.exp@parallel=0(%c)
      %e: float32[64, 100] = torch.cumsum(%d, axis=0)
      return %e
    }""")
    fused = inplace_update(fuse_operators(module), device=CPU)
    assert text(fused).count("@parallel=0(") == 0
    attrs = {name: dict(f.attrs) for name, f in fused.functions.items()}
    assert "config" not in attrs["fused_exp_tanh"]
    assert attrs["exp_in_place"]["config"] == "parallel=0"
    assert configure(fused, device=CPU).functions["exp_in_place"].attrs["config"] == "parallel=0"
    fake_costs.keep_costs(fused.functions["exp_in_place"], {"tvm": 1.0})
    assert "config" not in configure(fused, device=CPU).functions["exp_in_place"].attrs
