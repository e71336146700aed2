"""Function values as data: what is computed stays the same."""

from __future__ import annotations

import pytest

import meta
from meta.base import config
from meta.ir import Function, FuncType, bindings, verify
from meta.passes import autodiff, defunctionalize, infer_type
from meta.testing import check
from meta.vm.run.interpreter import run_module
from tests.passes.test_autodiff_control_flow import (
    CHOSEN,
    CLOSURES,
    COMPOSED,
    GIVEN,
    HIGHER_ORDER,
    LOOP,
    OPERATORS,
    RETURNED,
)
from tests.program_text import module

# In a field, in a reference, in a tuple of a tuple.
HELD = """
type Held { One(fn(float32[2]) -> float32[2]) Two(int64[]) }
func @main(%x: float32[2]) -> float32[2] {
  %f: fn(float32[2]) -> float32[2] = fn(%a: float32[2]) -> float32[2] {
    %b: float32[2] = multiply(%a, %x)
    return %b
  }
  %h: type Held = construct One(%f) -> type Held
  %g: fn(float32[2]) -> float32[2] = get_field One.0(%h) -> fn(float32[2]) -> float32[2]
  %u: float32[2] = %g(%x)
  %r: ref(fn(float32[2]) -> float32[2]) = make_ref(%g)
  %w: () = write_ref(%r, @exp)
  %e: fn(float32[2]) -> float32[2] = read_ref(%r)
  %v: float32[2] = %e(%u)
  %t: ((fn(float32[2]) -> float32[2], int64[]), float32[2]) = ((%e, const int64[] 1), %v)
  %s: (fn(float32[2]) -> float32[2], int64[]) = %t.0
  %l: fn(float32[2]) -> float32[2] = %s.0
  %y: float32[2] = %l(%v)
  return %y
}
func @exp(%x: float32[2]) -> float32[2] {
  %y: float32[2] = exp(%x)
  return %y
}"""

COUNT = 40


def many() -> str:
    """Return a program that makes one of many closures, more than one function asks for."""
    text = ["func @main(%x: float32[2], %n: int64[]) -> float32[2] {"]
    text += ["  %c0: fn(float32[2]) -> float32[2] = fn(%a: float32[2]) -> float32[2] {"]
    text += ["    return %a", "  }"]
    for i in range(1, COUNT):
        kind = "fn(float32[2]) -> float32[2]"
        text += [
            f"  %p{i}: bool[] = equal(%n, const int64[] {i})",
            f"  %c{i}: {kind} = if %p{i} {{",
            f"    %f{i}: {kind} = fn(%a{i}: float32[2]) -> float32[2] {{",
            f"      %b{i}: float32[2] = multiply(%a{i}, {float(i)})",
            f"      %d{i}: float32[2] = multiply(%b{i}, %x)",
            f"      return %d{i}",
            f"    }}\n    yield %f{i}\n  }} else {{\n    yield %c{i - 1}\n  }}",
        ]
    return "\n".join([*text, f"  %y: float32[2] = %c{COUNT - 1}(%x)", "  return %y", "}"])


X = meta.array([0.7, 1.5])
PROGRAMS = {
    "chosen": (CHOSEN, [X, meta.array(True)]),
    "chosen, not taken": (CHOSEN, [X, meta.array(False)]),
    "returned": (RETURNED, [X, X]),
    "composed": (COMPOSED, [meta.array(3, "int32"), X, X]),
    "known": (CLOSURES, [X, X, meta.array(True)]),
    "given to functions": (HIGHER_ORDER, [meta.array(2, "int32"), X, X]),
    "held": (HELD, [X]),
    "many": (many(), [X, meta.array(30)]),
    "many, the first": (many(), [X, meta.array(COUNT)]),
}


@pytest.mark.parametrize(("text", "args"), PROGRAMS.values(), ids=PROGRAMS)
def test_the_same_is_computed_without_function_values(text: str, args: list[meta.ndarray]) -> None:
    program = module(text)
    found = defunctionalize(program)
    verify(found, typed=True)
    verify(infer_type(found), typed=True)
    assert "fn(" not in str(found)
    assert not any(
        isinstance(b.value, Function) or isinstance(b.var.type, FuncType)
        for function in found.functions.values()
        for b in bindings(function)
    )
    expected = run_module(program, args)
    check(run_module(found, args), expected, 0, 0)
    with config.override(META_VERIFY=True):
        check(meta.vm.compile(found, *args)(*args), expected, 1e-6, 1e-6)


@pytest.mark.parametrize("text", [LOOP, GIVEN, OPERATORS])
def test_what_stays(text: str) -> None:
    """No function values; such that come from outside; operators."""
    program = module(text)
    assert defunctionalize(program) is program


def test_the_gradient_of_one_of_many() -> None:
    x, n = meta.array([0.7, 1.5]), meta.array(30)
    found = autodiff(module(many()), wrt=["x"])
    verify(found, typed=True)
    _, (gradient,) = run_module(found, [meta.ones_like(x), x, n])
    check(gradient, x * 60.0, 1e-6, 1e-6)


NAMED = """
func @main(%x: float32[n, 2], %p: bool[]) -> float32[n, 2] {
  %f: fn(float32[n, 2]) -> float32[n, 2] = if %p {
    %g: fn(float32[n, 2]) -> float32[n, 2] = fn(%a: float32[n, 2]) -> float32[n, 2] {
      %b: float32[n, 2] = multiply(%a, %x)
      return %b
    }
    yield %g
  } else {
    %s: float32[] = sum(%x)
    %h: fn(float32[n, 2]) -> float32[n, 2] = fn(%c: float32[n, 2]) -> float32[n, 2] {
      %d: float32[n, 2] = broadcast_to(%s, shape=(dim n, 2))
      return %d
    }
    yield %h
  }
  %y: float32[n, 2] = %f(%x)
  return %y
}"""


def test_names_of_extents() -> None:
    """What captures does not know the names; what is called with an extent does."""
    found = defunctionalize(module(NAMED))
    verify(found, typed=True)
    assert "g(float32[?, 2])" in str(found)
    inferred = infer_type(found)
    assert str(inferred.main.result_type) == "float32[n, 2]"
    compiled = meta.vm.compile(found)
    for n in (1, 3):
        x = meta.ones((n, 2)) * 3.0
        assert compiled(x, meta.array(True)).tolist() == [[9.0, 9.0]] * n
        assert compiled(x, meta.array(False)).tolist() == [[6.0 * n] * 2] * n
