"""What is said of code without running it: who is recursive, who writes what, when values die."""

from __future__ import annotations

import pytest

from meta.base.device import CPU
from meta.base.errors import IRError
from meta.ir import parse
from meta.passes import Pipeline, dispatch, infer_type, plan_memory
from meta.vm.compiler.bytecode import (
    AllocateStorage,
    Branch,
    Invoke,
    Jump,
    Move,
    Release,
    Return,
    TailCall,
)
from meta.vm.compiler.code import Code, FunctionCode
from meta.vm.compiler.code_analysis import CONSTANT, FRESH, recursive, summaries
from meta.vm.compiler.emit import emit, with_releases
from tests.vm import test_control_flow as simple
from tests.vm import test_machine as programs

VIEWS_OF_ANY_SIZE = """
func @main(%x: float32[a, b], %y: float32[a, 3]) -> (float32[a*b], ()) {
  %0: float32[a*b] = reshape(%x, shape=(-1,))
  %1: float32[3*a] = reshape(%y, shape=(-1,))
  %2: float32[3*a] = relu(%1)
  %3: () = assign(%1, %2)
  return (%0, %3)
}
"""


def code(text: str) -> Code:
    passes = Pipeline(
        infer_type, lambda m: dispatch(m, device=CPU), lambda m: plan_memory(m, device=CPU)
    )
    return emit(passes(parse(text)), CPU)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (simple.LOOP, set()),
        (simple.DEPTH, {"depth"}),
        (programs.GCD, set()),
        (programs.FIBONACCI, {"fib"}),
        (programs.PARITY, set()),
        (programs.WRITES, set()),
        (programs.CLOSURES_IN_CLOSURES, {"main.f"}),
        (programs.SELECTED, set()),
    ],
    ids=["loop", "depth", "gcd", "fibonacci", "parity", "writes", "closures", "selected"],
)
def test_who_is_recursive(text: str, expected: set[str]) -> None:
    """A closure may be any, so one that calls another counts."""
    functions = code(text).functions
    assert recursive(functions) == expected
    for name in expected:
        found = functions[name].instructions()
        assert not any(isinstance(i, AllocateStorage) for i in found)


def test_a_loop_has_memory_that_all_rounds_use() -> None:
    loop = code(simple.LOOP).functions["loop"]
    assert sum(isinstance(i, AllocateStorage) for i in loop.instructions()) <= 1
    assert isinstance(loop.blocks[1][-1], TailCall)


@pytest.mark.parametrize(
    ("text", "name", "returned", "written"),
    [
        (programs.WRITES, "step", {1}, {1, 2, FRESH}),
        (programs.WRITES, "main", {0, FRESH}, {0, 1, FRESH}),
        (programs.NESTED_IFS, "main", {0, CONSTANT, FRESH}, set()),
        (programs.TUPLES, "swap", {0}, set()),
        (programs.CONSTANT_OR_NOT, "write", set(), {0, 1}),
        (programs.CONSTANT_OR_NOT, "main", set(), {1, 2, CONSTANT}),
        (programs.CLOSURE_WRITES, "main", {FRESH}, {0, 2}),
        (programs.CLOSURE_WRITES, "main.write", set(), {0, 1}),
        (VIEWS_OF_ANY_SIZE, "main", {0}, {1}),
    ],
)
def test_who_writes_and_returns_what(
    text: str, name: str, returned: set[int], written: set[int]
) -> None:
    found = summaries(code(text))[name]
    assert found.returned - {FRESH} == returned - {FRESH}
    assert found.written - {FRESH} == written - {FRESH}


def test_writing_what_is_always_a_constant_is_refused() -> None:
    text = """
    func @main(%p: bool[], %v: float32[1]) -> () {
      %t: float32[1] = if %p {
        yield const float32[1] [1.0]
      } else {
        yield const float32[1] [2.0]
      }
      %0: () = sgd(%t, %v, %v, 1.0, 0.0)  # model.py:8
      return ()
    }"""
    with pytest.raises(IRError, match="writes to a constant") as caught:
        code(text)
    assert str(caught.value.span) == "model.py:8"


def test_releases_on_every_path() -> None:
    """Registers 1 and 2 live until one branch each, 4 is never used."""
    function = FunctionCode(
        2,
        6,
        (
            (
                Invoke(0, (0,), (2,), False),
                Invoke(0, (0,), (4,), False),
                Branch(0, 1, 2),
            ),
            (Move(3, 1), Jump(3)),
            (Move(3, 2), Jump(3)),
            (Invoke(0, (3,), (5,), False), Return(5)),
        ),
    )
    blocks = with_releases(function).blocks
    assert blocks == (
        (
            Invoke(0, (0,), (2,), False),
            Invoke(0, (0,), (4,), False),
            Release((4,)),
            Branch(0, 1, 2),
        ),
        (Release((0, 2)), Move(3, 1), Release((1,)), Jump(3)),
        (Release((0, 1)), Move(3, 2), Release((2,)), Jump(3)),
        (Invoke(0, (3,), (5,), False), Return(5)),
    )
