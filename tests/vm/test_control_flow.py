"""Branches, closures and recursion run under the interpreter; the VM says that it has none."""

from __future__ import annotations

import pytest

import meta
from meta.base.errors import IRError
from meta.ir import Module, parse, verify
from meta.vm.executable import module_program
from meta.vm.interpreter import interpret

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


def module(text: str) -> Module:
    found = parse(text)
    verify(found, typed=True)
    return found


def run(text: str, *args: meta.ndarray) -> meta.ndarray:
    return interpret(module_program(module(text)), *args)


@pytest.mark.parametrize("x", [-3.0, 3.0])
def test_a_branch(x: float) -> None:
    assert run(ABS, meta.array(x)).item() == 3.0


def test_a_closure() -> None:
    result = run(CLOSURE, meta.array([1.0, 2.0]), meta.array([3.0, 4.0]))
    assert result.numpy().tolist() == [9.0, 32.0]


def test_a_recursion() -> None:
    assert run(FACTORIAL, meta.array(5.0)).item() == 120.0
    assert run(FACTORIAL, meta.array(100.0)).item() == float("inf")


def test_a_recursion_without_end() -> None:
    text = "func @main(%x: float32[]) -> float32[] {\n  %y: float32[] = @main(%x)\n  return %y\n}"
    with pytest.raises(IRError, match="recurses deeper"):
        run(text, meta.array(1.0))


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


@pytest.mark.parametrize(
    ("text", "args", "found"),
    [
        (ABS, [meta.array(1.0)], "If"),
        (CLOSURE, [meta.array([1.0, 1.0])] * 2, "Function"),
        (FACTORIAL, [meta.array(1.0)], "Call"),
    ],
    ids=["branch", "closure", "recursion"],
)
def test_the_vm_refuses(text: str, args: list[meta.ndarray], found: str) -> None:
    with pytest.raises(IRError) as caught:
        meta.vm.compile(module(text), *args)
    assert "straight-line programs" in str(caught.value)
    assert f"found:    {found}" in str(caught.value)
    assert "interpreter" in str(caught.value)


def test_an_error_names_the_line_of_the_program() -> None:
    text = """
    func @main(%x: float32[2]) -> float32[2] {
      %y: float32[2] = softmax(%x, axis=3)  # model.py:12
      return %y
    }"""
    with pytest.raises(meta.errors.TypeInferError) as caught:
        interpret(module_program(parse(text)), meta.array([1.0, 2.0]))
    assert "at:       model.py:12" in str(caught.value)
