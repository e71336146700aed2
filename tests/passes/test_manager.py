"""The pipeline: order, history, verification, printing, fuel; and whole pipelines on numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch

import meta
from meta.base import config
from meta.base.errors import IRError
from meta.ir import Module, Var, parse, structural_equal
from meta.passes import Pipeline, dead_code, fold_constant, infer_type, simplify
from meta.vm.compiler.calling_convention import module_program
from meta.vm.run.interpreter import interpret

MODULE = parse("""
func @main(%x: float32[2]) -> float32[2] {
  %a: float32[2] = exp(%x)
  %b: float32[2] = relu(%x)
  return %b
}""")


def keep(module: Module, *, note: str = "") -> Module:
    return module


def broken(module: Module) -> Module:
    """Return a module that uses a variable that nobody binds."""
    body = replace(module.main.body, result=Var("nowhere", module.main.params[0].type))
    return Module({"main": replace(module.main, body=body)})


@pytest.fixture(autouse=True)
def fresh_fuel() -> Iterator[None]:
    used, Pipeline.fuel_used = Pipeline.fuel_used, 0
    yield
    Pipeline.fuel_used = used


def test_passes_run_in_order_and_are_recorded() -> None:
    pipeline = Pipeline(infer_type, partial(keep, note="bound"), dead_code)
    result = pipeline(MODULE)
    assert [r.name for r in pipeline.history] == ["input", "infer_type", "keep", "dead_code"]
    assert pipeline.history[0].module is MODULE
    assert pipeline.history[-1].module is result
    assert len(result.main.body.bindings) == 1
    assert all(r.seconds >= 0 for r in pipeline.history)
    assert str(pipeline.history[1]).split()[0] == "infer_type"
    pipeline(MODULE)
    assert len(pipeline.history) == 4


def test_a_broken_pass_is_found_where_it_runs() -> None:
    with config.override(META_VERIFY=False):
        Pipeline(broken)(MODULE)
    with config.override(META_VERIFY=True), pytest.raises(IRError) as caught:
        Pipeline(keep, broken, keep)(MODULE)
    assert "nowhere" in str(caught.value)
    assert "found after broken" in str(caught.value)


def test_debug_prints_every_module(capsys: pytest.CaptureFixture[str]) -> None:
    with config.override(META_DEBUG=True):
        Pipeline(infer_type, dead_code)(MODULE)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("# after") == 2
    assert "# after dead_code" in err
    assert err.count("relu") == 2
    assert err.count("exp") == 1


@pytest.mark.parametrize("fuel", range(4))
def test_fuel_stops_the_process_after_some_passes(fuel: int) -> None:
    with config.override(META_FUEL=fuel):
        first, second = Pipeline(infer_type, simplify), Pipeline(dead_code)
        second(first(MODULE))
    names = [r.name for p in (first, second) for r in p.history[1:]]
    assert names == ["infer_type", "simplify", "dead_code"][:fuel]


def test_the_pipeline_of_an_executable_runs_verified() -> None:
    with config.override(META_VERIFY=True):
        run = meta.vm.compile(MODULE, meta.array([-1.0, 1.0]))
    assert run(meta.array([-1.0, 1.0])).numpy().tolist() == [0.0, 1.0]
    assert structural_equal(run.history[0].module, MODULE)


SPECIAL = [0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan"), 1e-45, 3e38, -2.5]
EXPRESSIONS = [
    "subtract(%x, 0)", "subtract(%x, 0.0)", "subtract(%x, -0.0)", "add(%x, 0.0)", "add(%x, -0.0)",
    "multiply(%x, 1)", "multiply(1.0, %x)", "multiply(%x, -1.0)", "multiply(%x, 0.0)",
    "divide(%x, 1)", "divide(1.0, %x)", "pow(%x, 1.0)", "astype(%x, 'float32')",
    "negative(%x)", "maximum(%x, %x)",
]  # fmt: skip


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_simplified_programs_give_the_same_bits(expression: str) -> None:
    """For signed zeros, infinities, NaN and denormals too: what simplify does is exact."""
    text = (
        f"func @main(%x: float32[{len(SPECIAL)}]) -> float32[{len(SPECIAL)}] {{\n"
        f"  %a: float32[{len(SPECIAL)}] = {expression}\n"
        f"  %b: float32[{len(SPECIAL)}] = negative(%a)\n"
        "  return %b\n}"
    ).replace("'", '"')
    module = parse(text)
    x = meta.array(SPECIAL, "float32")
    before, after = (
        interpret(module_program(m), x).torch()
        for m in (module, Pipeline(infer_type, simplify, fold_constant, dead_code)(module))
    )
    nan = before.isnan()
    assert torch.equal(nan, after.isnan())
    assert torch.equal(before[~nan].view(torch.int32), after[~nan].view(torch.int32))
