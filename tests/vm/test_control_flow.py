"""Branches, closures, loops and recursion: the interpreter and the VM give the same."""

from __future__ import annotations

from typing import Any

import pytest

import meta
from meta.base import config
from meta.base.errors import IRError
from meta.ir import parse
from meta.testing import check
from meta.vm.compiler.calling_convention import module_program
from meta.vm.run.interpreter import interpret
from tests.program_text import module

ABS = """
func @main(%x: float32[]) -> float32[] {
  %below: bool[] = less(%x, 0.0)
  %y: float32[] = if %below {
    %a: float32[] = negative(%x)
    yield %a
  } else {
    yield %x
  }
  return %y
}"""

CLOSURE = """
func @main(%x: float32[2], %y: float32[2]) -> float32[2] {
  %f: fn(float32[2]) -> float32[2] = fn(%a: float32[2]) -> float32[2] {
    %b: float32[2] = multiply(%a, %y)
    return %b
  }
  %u: float32[2] = %f(%x)
  %v: float32[2] = %f(%u)
  return %v
}"""

FACTORIAL = """
func @factorial(%n: float32[]) -> float32[] {
  %last: bool[] = less(%n, 2.0)
  %y: float32[] = if %last {
    yield const float32[] 1.0
  } else {
    %m: float32[] = subtract(%n, 1.0)
    %f: float32[] = @factorial(%m)
    %p: float32[] = multiply(%n, %f)
    yield %p
  }
  return %y
}

func @main(%n: float32[]) -> float32[] {
  %y: float32[] = @factorial(%n)
  return %y
}"""


def compiled(text: str, *args: meta.ndarray) -> meta.ndarray:
    """Run in the VM, calls and closures as they are written."""
    with meta.PassContext(disabled=["inline"]):
        return meta.vm.compile(module(text), *args)(*args)


def interpreted(text: str, *args: meta.ndarray) -> meta.ndarray:
    return interpret(module_program(module(text)), *args)


def run(text: str, *args: meta.ndarray) -> meta.ndarray:
    """Run under both; return what the interpreter does."""
    found = interpreted(text, *args)
    check(compiled(text, *args), found, 0, 0)
    return found


@pytest.mark.parametrize("x", [-3.0, 3.0])
def test_a_branch(x: float) -> None:
    assert run(ABS, meta.array(x)).item() == 3.0


def test_a_closure() -> None:
    result = run(CLOSURE, meta.array([1.0, 2.0]), meta.array([3.0, 4.0]))
    assert result.numpy().tolist() == [9.0, 32.0]


def test_a_recursion() -> None:
    assert run(FACTORIAL, meta.array(5.0)).item() == 120.0
    assert run(FACTORIAL, meta.array(100.0)).item() == float("inf")


LOOP = """
func @loop(%i: int64[], %n: int64[], %s: float32[]) -> float32[] {
  %more: bool[] = less(%i, %n)
  %r: float32[] = if %more {
    %j: int64[] = add(%i, 1)
    %t: float32[] = add(%s, 0.5)
    %a: float32[] = @loop(%j, %n, %t)
    yield %a
  } else {
    yield %s
  }
  return %r
}

func @main(%n: int64[], %s: float32[]) -> float32[] {
  %y: float32[] = @loop(const int64[] 0, %n, %s)
  return %y
}"""

DEPTH = """
func @depth(%n: int64[], %x: float32[]) -> float32[] {
  %last: bool[] = less(%n, 1)
  %y: float32[] = if %last {
    yield %x
  } else {
    %m: int64[] = subtract(%n, 1)
    %d: float32[] = @depth(%m, %x)
    %p: float32[] = add(%d, 1.0)
    yield %p
  }
  return %y
}

func @main(%n: int64[], %x: float32[]) -> float32[] {
  %y: float32[] = @depth(%n, %x)
  return %y
}"""


def test_a_loop_runs_in_constant_space() -> None:
    start = meta.array(1.0)
    with config.override(META_MAX_DEPTH=2):
        assert run(LOOP, meta.array(100), start).item() == 51.0
    assert run(LOOP, meta.array(100_000), start).item() == 50_001.0


@pytest.mark.long
def test_a_deep_recursion() -> None:
    x = meta.array(2.0)
    x.requires_grad = True
    y = run(DEPTH, meta.array(100_000), x)
    assert y.item() == 100_002.0
    y.backward()
    assert x.grad.item() == 1.0


@pytest.mark.parametrize("run", [interpreted, compiled])
def test_a_recursion_without_end(run: Any) -> None:
    text = """
    func @main(%x: float32[]) -> float32[] {
      %y: float32[] = @main(%x)  # model.py:7
      %z: float32[] = negative(%y)
      return %z
    }"""
    with config.override(META_MAX_DEPTH=1000), pytest.raises(IRError) as caught:
        run(text, meta.array(1.0))
    assert "recurses more than 1000 frames deep" in str(caught.value)
    assert "at:       model.py:7" in str(caught.value)


def test_a_closure_has_the_values_of_its_own_call() -> None:
    text = """
    func @scaled(%k: float32[]) -> fn(float32[]) -> float32[] {
      %f: fn(float32[]) -> float32[] = fn(%a: float32[]) -> float32[] {
        %b: float32[] = multiply(%a, %k)
        return %b
      }
      return %f
    }

    func @main(%x: float32[]) -> float32[] {
      %two: fn(float32[]) -> float32[] = @scaled(const float32[] 2.0)
      %three: fn(float32[]) -> float32[] = @scaled(const float32[] 3.0)
      %u: float32[] = %two(%x)
      %v: float32[] = %three(%u)
      return %v
    }"""
    assert run(text, meta.array(5.0)).item() == 30.0


def test_a_constant_that_a_branch_yields_is_copied() -> None:
    text = """
    func @main(%b: bool[]) -> float32[1] {
      %y: float32[1] = if %b {
        yield const float32[1] [1.0]
      } else {
        %r: float32[1] = reshape(const float32[] 2.0, shape=(1,))
        yield %r
      }
      return %y
    }"""
    program = module_program(module(text))
    for flag in (True, False):
        expected = interpret(program, meta.array(flag)).item()
        interpret(program, meta.array(flag)).update([9.0])
        assert interpret(program, meta.array(flag)).item() == expected


def test_gradients_flow_through_what_was_run() -> None:
    for value, expected in ((-3.0, -1.0), (3.0, 1.0)):
        x = meta.array(value)
        x.requires_grad = True
        run(ABS, x).backward()
        assert x.grad.item() == expected
    n = meta.array(3.0)
    n.requires_grad = True
    run(FACTORIAL, n).backward()  # n (n - 1)
    assert n.grad.item() == 5.0


def test_an_error_names_the_line_of_the_program() -> None:
    text = """
    func @main(%x: float32[2]) -> float32[2] {
      %y: float32[2] = softmax(%x, axis=3)  # model.py:12
      return %y
    }"""
    with pytest.raises(meta.errors.TypeInferError) as caught:
        interpret(module_program(parse(text)), meta.array([1.0, 2.0]))
    assert "at:       model.py:12" in str(caught.value)
