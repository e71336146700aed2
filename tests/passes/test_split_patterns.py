"""Fused patterns against the kernels of their calls, by costs that nobody measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import meta
from meta.base import config
from meta.base.device import CPU
from meta.dialect.core import KERNEL
from meta.ir import Module, parse, verify
from meta.passes import fuse_dialect, infer_type, split_patterns
from meta.vm.run.interpreter import run_module
from tests.cost import fake_costs

PROGRAM = infer_type(
    parse("""
func @main(%x: float32[2, 3], %w: float32[4, 3], %b: float32[4]) -> float32[2, 4] {
  %0: float32[2, 4] = dense(%x, %w)
  %1: float32[2, 4] = bias_add(%0, %b)
  %2: float32[2, 4] = exp(%1)
  return %2
}""")
)
FAST = {"dense": 6.0, "bias_add": 3.0, "exp": 1.0}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[None]:
    with fake_costs.store(tmp_path), meta.dialect.only("torch", "tvm"):
        yield


@pytest.fixture
def fused() -> Module:
    module = fuse_dialect(PROGRAM, device=CPU)
    assert _patterns(module) == ["linear"]
    return module


def _patterns(module: Module) -> list[object]:
    return [f.attrs[KERNEL] for f in module.functions.values() if KERNEL in f.attrs]


def _measured(module: Module, together: float, **apart: float) -> None:
    (pattern,) = (f for f in module.functions.values() if KERNEL in f.attrs)
    fake_costs.keep_costs(pattern, {"torch": together})
    for call in fake_costs.calls(PROGRAM):
        if call.op.name in apart:
            time = apart[call.op.name]
            fake_costs.keep_costs(call, {"tvm": 2 * time, "torch": time})


def test_calls_that_take_less_run_by_themselves(fused: Module) -> None:
    _measured(fused, 10.0, **FAST)
    found = split_patterns(fused, device=CPU)
    verify(found, typed=True)
    assert not _patterns(found) and len(found.functions) == 1
    assert [b.value.callee.name for b in found.main.body.bindings] == ["dense", "bias_add", "exp"]
    given = [torch.randn(2, 3), torch.randn(4, 3), torch.randn(4)]
    wanted = torch.nn.functional.linear(*given).exp()
    result = run_module(found, [*map(meta.array, given)])
    torch.testing.assert_close(result.torch(), wanted)


@pytest.mark.parametrize("together", [9.0, 9.2])
def test_within_the_margin_the_pattern_stays(fused: Module, together: float) -> None:
    _measured(fused, together, **FAST)
    assert split_patterns(fused, device=CPU) is fused


def test_where_something_was_not_measured_the_pattern_stays(fused: Module) -> None:
    assert split_patterns(fused, device=CPU) is fused
    _measured(fused, 10.0, dense=6.0, exp=1.0)
    assert split_patterns(fused, device=CPU) is fused


def test_what_the_user_prefers_stays(fused: Module) -> None:
    _measured(fused, 10.0, **FAST)
    with meta.dialect.prefer("torch"):
        assert split_patterns(fused, device=CPU) is fused
    with config.override(META_TUNE="off"):
        assert split_patterns(fused, device=CPU) is fused
    assert split_patterns(fused, device=CPU) is not fused


def test_in_the_pipeline(fused: Module) -> None:
    def kernels() -> list[str]:
        function = meta.model.trace(lambda x, w, b: meta.exp(meta.linear(x, w, b)))
        given = [meta.array(torch.randn(*s)) for s in ((2, 3), (4, 3), (4,))]
        return sorted(meta.vm.compile(function, *given).kernels())

    assert any("linear" in name for name in kernels())
    _measured(fused, 10.0, **FAST)
    assert not any("linear" in name for name in kernels())
