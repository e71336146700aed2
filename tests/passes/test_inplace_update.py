"""Results that are written over an operand: when, and that programs then still give the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meta
from meta import op
from meta.base.device import CPU, Device
from meta.dialect import only
from meta.dialect.core import IN_PLACE
from meta.ir import Module, TupleType, parse, structural_equal
from meta.model import trace
from meta.passes import dispatch, infer_type, inplace_update, plan_memory
from meta.passes.plan_memory import OFFSETS, planned_peak
from meta.testing.emulator.operators import CUDA, emulated_cuda


def updated(body: str, result: str = "%c", head: str = "%x: float32[8], %y: float32[8]") -> Module:
    module = infer_type(parse(f"func @main({head}) {{\n{body}\n return {result}\n}}"))
    with only("tvm"):
        return inplace_update(dispatch(module, device=CPU), device=CPU)


def overwritten(module: Module) -> list[int]:
    return [f.attrs[IN_PLACE] for f in module.functions.values() if IN_PLACE in f.attrs]


def test_before_and_after() -> None:
    found = updated("%a = cumsum(%x, axis=0)\n%b = add(%y, %a)\n%c = cumsum(%b, axis=0)")
    expected = parse("""
    func @main(%x: float32[8], %y: float32[8]) -> float32[8] {
      %a: float32[8] = tvm.cumsum(%x, axis=0)
      %b: float32[8] = @add_in_place(%y, %a)
      %c: float32[8] = tvm.cumsum(%b, axis=0)
      return %c
    }
    func @add_in_place(%y: float32[8], %a: float32[8]) -> float32[8]
        attrs(fused="tvm", in_place=1) {
      %b: float32[8] = tvm.add(%y, %a)
      return %b
    }""")
    assert structural_equal(found, expected)
    with only("tvm"):
        offsets = {i: at for i, _, at in plan_memory(found, device=CPU).main.attrs[OFFSETS]}
    assert offsets == {0: 0, 1: 0}


@pytest.mark.parametrize(
    "body",
    [
        "%a = cumsum(%x, axis=0)\n%b = add(%a, %y)\n%c = multiply(%a, %b)",  # %a is used later
        "%a = cumsum(%x, axis=0)\n%c = add(%a, %y)",  # the result leaves
        "%b = add(%x, %y)\n%c = cumsum(%b, axis=0)",  # arguments are not the program's
        "%a = cumsum(%x, axis=0)\n%b = multiply(%a, 0.5)\n%c = cumsum(%b, axis=0)",  # a number
        "%a = sum(%x, axis=0)\n%b = add(%a, %y)\n%c = cumsum(%b, axis=0)",  # another shape
        "%a = cumsum(%x, axis=0)\n%b = cumsum(%a, axis=0)\n%c = cumsum(%b, axis=0)",  # no kind
        # A view of it is used later.
        """
        %a = cumsum(%x, axis=0)
        %v = reshape(%a, shape=(2, 4))
        %b = add(%a, %y)
        %d = cumsum(%b, axis=0)
        %w = sum(%v, axis=0)
        %e = sum(%w, axis=0)
        %c = add(%d, %e)
        """,
    ],
)
def test_what_is_not_overwritten(body: str) -> None:
    assert not overwritten(updated(body))


def test_two_views_of_one_memory_in_one_call() -> None:
    body = """
    %a = cumsum(%x, axis=0)
    %v = reshape(%a, shape=(2, 2))
    %w = reshape(%a, shape=(1, 2, 2))
    %b = add(%v, %w)
    %c = cumsum(%b, axis=0)
    """
    assert not overwritten(updated(body, head="%x: float32[4]"))


@pytest.mark.parametrize(
    ("resident", "expected"),
    [
        ([], []),
        ([(0, 64)], [0]),
        ([(0, 64), (1, 128)], [0]),
        ([(0, 64), (1, 80)], []),  # the two meet, and %y is read later
        ([(1, 64)], []),
    ],
)
def test_parameters_whose_memory_is_the_function_s(
    resident: list[tuple[int, int]], expected: list[int]
) -> None:
    text = """
    func @main(%x: float32[8], %y: float32[8]) -> float32[8] {
      %b: float32[8] = tvm.multiply(%x, %y)
      %d: float32[8] = tvm.cumsum(%b, axis=0)
      %e: float32[8] = tvm.cumsum(%d, axis=0)
      %c: float32[8] = tvm.add(%e, %y)
      return %c
    }"""
    found = inplace_update(parse(text), device=CPU, resident=resident)
    assert overwritten(found) == expected
    plan = plan_memory(found, device=CPU, resident=resident).main.attrs[OFFSETS]
    at = {i: offset for i, _, offset in plan}
    assert (at[0] == 64) == bool(expected)


def test_a_function_called_twice_overwrites_where_it_may() -> None:
    body = """
    %a = cumsum(%x, axis=0)
    %b = add(%a, %y)
    %d = cumsum(%b, axis=0)
    %e = cumsum(%d, axis=0)
    %f = add(%d, %y)
    %g = add(%e, %f)
    %c = cumsum(%g, axis=0)
    """
    module = updated(body)
    assert overwritten(module) == [0]
    assert str(module).count("@add_in_place(") == 4  # three calls, one function


def steps(x: Any, y: Any) -> Any:
    a = op.cumsum(x, 0)
    b = op.reshape(a, (2, 4))
    c = op.cumsum(op.add(b, op.reshape(y, (2, 4))), 1)
    d = op.multiply(c, op.exp(b))
    return op.sum(d, 0), op.reshape(op.multiply(d, c), (8,))


def test_programs_give_the_same() -> None:
    x, y = (meta.array(np.linspace(i, 2, 8, dtype="float32")) for i in range(2))
    with only("tvm"):
        run = meta.vm.compile(trace(steps), x, y)
        expected = steps(x, y)
    assert any("in_place" in name for name in run.kernels())
    for _ in range(2):
        for found, wanted in zip(run(x, y), expected, strict=True):
            np.testing.assert_allclose(found.numpy(), wanted.numpy(), 1e-5)


def bias_and_activation(x: Any, w: Any, b: Any) -> Any:
    y = op.bias_add(op.cumsum(op.multiply(x, w), 0), b)
    return op.add(op.cumsum(op.gelu(y), 1), op.sigmoid(op.cumsum(y, 0)))


def test_the_last_of_several_results_is_written_in_place() -> None:
    x, w = (meta.array(np.random.default_rng(i).normal(size=(64, 64)), "float32") for i in (0, 1))
    b = meta.array(np.linspace(-1, 1, 64), "float32")
    with only("tvm"):
        run = meta.vm.compile(trace(bias_and_activation), x, w, b)
        expected = bias_and_activation(x, w, b)
    several = [
        f
        for f in run.module.functions.values()
        if IN_PLACE in f.attrs and isinstance(f.result_type, TupleType)
    ]
    assert several
    for _ in range(2):
        np.testing.assert_allclose(run(x, w, b).numpy(), expected.numpy(), 1e-4, 1e-4)


SCORES = """
func @main(%x: bfloat16[64, 4096], %t: int64[64], %dy: float32[]) -> bfloat16[64, 64] {
  %s: bfloat16[64, 4096] = tvm.relu(%x)
  %v: bfloat16[64, 64, 64] = reshape(%s, shape=(64, 64, 64))
  %l: bfloat16[64, 64] = tvm.sum(%v, axis=(2,))
  %d: bfloat16[64, 4096] = @gradient(%s, %dy, %t)
  %y: bfloat16[64, 64] = tvm.matmul_nt(%d, %x)
  return %y
}
func @gradient(%0: bfloat16[64, 4096], %dy: float32[], %t: int64[64]) -> bfloat16[64, 4096]
    attrs(fused="tvm") {
  %wide: float32[64, 4096] = tvm.astype(%0, dtype="float32")
  %g: float32[64, 4096] = tvm.cross_entropy_dpred(%dy, %wide, %t)
  %d: bfloat16[64, 4096] = tvm.astype(%g, dtype="bfloat16")
  return %d
}"""
LARGE = 64 * 4096 * 2 / 2**20


@pytest.mark.parametrize(
    ("device", "least", "expected"), [(CUDA, LARGE, [0]), (CUDA, 2 * LARGE, []), (CPU, 0.0, [])]
)
def test_the_gradient_of_scores_takes_their_place(
    device: Device, least: float, expected: list[int]
) -> None:
    """On CUDA, from a size on."""
    module = infer_type(parse(SCORES))
    with emulated_cuda():
        found = inplace_update(module, device=device, least_mib=least)
        assert overwritten(found) == expected
        peaks = [planned_peak(m.main, m) for m in (module, found)]
    size = 64 * 4096 * 2
    assert peaks[0] == 2 * size
    assert (peaks[1] < 1.1 * size) == bool(expected)
    used_later = SCORES.replace("tvm.matmul_nt(%d, %x)", "tvm.matmul_nt(%d, %s)")
    with emulated_cuda():
        assert not overwritten(inplace_update(infer_type(parse(used_later)), device=CUDA))


def test_one_call_with_a_reduction_takes_the_place() -> None:
    text = """
    func @main(%x: float32[64, 4096], %t: int64[64], %dy: float32[]) -> float32[64] {
      %s: float32[64, 4096] = tvm.relu(%x)
      %d: float32[64, 4096] = tvm.cross_entropy_dpred(%dy, %s, %t)
      %y: float32[64] = tvm.sum(%d, axis=(1,))
      return %y
    }"""
    with emulated_cuda():
        found = inplace_update(infer_type(parse(text)), device=CUDA, least_mib=1.0)
    assert overwritten(found) == [1]
    assert "@cross_entropy_dpred_in_place(" in str(found)
