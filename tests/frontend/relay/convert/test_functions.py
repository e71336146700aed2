"""Tests of functions: calls, recursion, closures, functions as values, type parameters."""

from __future__ import annotations

import pytest

import meta
from meta.frontend.relay.errors import RelayError
from tests.frontend.relay.convert.running import model_of, run

X = [1.0, 2.0, 3.0]


def test_a_function_of_one_type_is_made_once() -> None:
    text = """
    def @double(%x: Tensor[(?), float32]) -> Tensor[(?), float32] { %x + %x }
    def @main(%x: Tensor[(3), float32], %y: Tensor[(2), float32]) {
      (@double(@double(%x)), @double(%y))
    }"""
    assert run(text, X, [1.0, 0.5]) == ([4.0, 8.0, 12.0], [2.0, 1.0])
    module = model_of(text).program(meta.array(X), meta.array([1.0, 0.5])).module
    assert len(module.functions) == 3


def test_recursion_through_globals() -> None:
    text = """
    def @even(%n: int32) -> bool { if (%n == 0) { True } else { @odd(%n - 1) } }
    def @odd(%n: int32) -> bool { if (%n == 0) { False } else { @even(%n - 1) } }
    def @main(%n: int32) { (@even(%n), @odd(%n)) }"""
    assert run(text, meta.array(7, "int32")) == (False, True)


def test_a_let_bound_function_that_calls_itself_and_captures() -> None:
    text = """
    def @main(%x: Tensor[(3), float32], %n: int32) {
      let %step = %x * 2f;
      let %loop = fn (%i: int32, %acc: Tensor[(3), float32]) -> Tensor[(3), float32] {
        let %inner = fn (%a: Tensor[(3), float32]) { %a + %step };
        if (%i < %n) { %loop(%i + 1, %inner(%acc)) } else { %acc }
      };
      %loop(0, %x)
    }"""
    assert run(text, X, meta.array(3, "int32")) == [7.0, 14.0, 21.0]


def test_nested_loops_that_call_the_outer_one() -> None:
    text = """
    def @main(%n: int32, %s: int32) {
      let %outer = fn (%i: int32, %acc: int32) -> int32 {
        let %inner = fn (%j: int32, %a: int32) -> int32 {
          if (%j < %i) { %inner(%j + 1, %a + %s) } else { %outer(%i + 1, %a) }
        };
        if (%i < %n) { %inner(0, %acc) } else { %acc }
      };
      %outer(0, 0)
    }"""
    assert run(text, meta.array(5, "int32"), meta.array(3, "int32")) == 30


def test_functions_as_arguments_results_and_in_tuples() -> None:
    text = """
    def @twice(%f: fn (float32) -> float32, %x: float32) -> float32 { %f(%f(%x)) }
    def @adder(%n: float32) -> fn (float32) -> float32 { fn (%x: float32) -> float32 { %x + %n } }
    def @main(%x: float32, %c: bool) {
      let %inc = fn (%y: float32) { %y + %x };
      let %pair = (%inc, fn (%y: float32) { %y * %x });
      let %chosen = if (%c) { %pair.0 } else { %pair.1 };
      (@twice(%inc, %x), @adder(%x)(10f), %chosen(5f), @twice(@adder(3f), 1f), @twice(%pair.1, 2f))
    }"""
    assert run(text, 2.0, True) == (6.0, 12.0, 7.0, 7.0, 8.0)
    assert run(text, 2.0, False) == (6.0, 12.0, 10.0, 7.0, 8.0)


def test_type_parameters_are_found_by_the_arguments() -> None:
    text = """
    def @first[A, B](%p: (A, B)) -> A { %p.0 }
    def @apply[A, B](%f: fn (A) -> B, %x: A) -> B { %f(%x) }
    def @main(%x: Tensor[(3), float32], %n: int32) {
      let %id = fn [T](%t: T) -> T { %t };
      (@first((%x, %n)), @first((%n, %x)), %id(%x), %id(%n),
       @apply(fn (%y: Tensor[(3), float32]) { (%y, %n) }, %x), @apply(negative, %n))
    }"""
    n = meta.array(4, "int32")
    assert run(text, X, n) == (X, 4, X, 4, (X, 4), -4)


def test_untyped_functions_take_the_types_of_their_calls() -> None:
    text = """
    def @main(%x: Tensor[(3), float32], %n: int32) {
      let %double = fn (%y) { %y + %y };
      (%double(%x), %double(%n), %double(%double(%n)))
    }"""
    assert run(text, X, meta.array(4, "int32")) == ([2.0, 4.0, 6.0], 8, 16)


def test_a_recursion_that_changes_dimensions() -> None:
    text = """
    def @grow(%x: Tensor[(?), float32], %n: int32) -> Tensor[(?), float32] {
      if (%n == 0) { %x } else { @grow(concatenate((%x, %x)), %n - 1) }
    }
    def @main(%x: Tensor[(1), float32], %n: int32) { @grow(%x, %n) }"""
    assert run(text, [2.0], meta.array(2, "int32")) == [2.0] * 4


def test_what_a_compiler_was_told_to_fuse_is_inlined() -> None:
    text = """
    def @part(%x: float32, Compiler="dnnl", Primitive=1, global_symbol="f") -> float32 { %x * %x }
    def @main(%x: float32) {
      let %f = fn (%p: float32, Composite="c.add", PartitionedFromPattern="add_") { %p + 1f };
      %f(@part(%f(@part(%x))))
    }"""
    assert run(text, 2.0) == 26.0
    assert list(model_of(text).program(meta.array(2.0)).module.functions) == ["main"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def @main(%x: float32) { @f(%x) }", "no function @f"),
        ("def @f(%x: float32) { %x } def @main(%x: float32) { @f(%x, %x) }", "number of arguments"),
        (
            "def @f(%x: Tensor[(2), float32]) { %x + %x } "
            "def @main(%x: float32) { (@f(%x), @f(%x)) }",
            "another type than the program declares",
        ),
        (
            "def @f(%x: float32) { if (%x < 0f) { %x } else { @f(%x - 1f) } } "
            "def @main(%x: float32) { @f(%x) }",
            "the type of its result is not declared",
        ),
        ("def @main(%x: float32) { %x(%x) }", "no function"),
        ("def @main(%x: float32) { (%x, %x).2 }", "no field 2"),
        ("def @main(%x: float32) -> int32 { %x }", "another type than the program declares"),
        ("def @main(%x: float32) { fn (%y: float32) { %y + %x } }", "main returns a value"),
        ("def @main(%x: float32) { let %f = fn (%y) { %y }; (%f, %f) }", "are not known"),
    ],
)
def test_errors_have_a_place(text: str, message: str) -> None:
    with pytest.raises(RelayError, match=message):
        model_of(text).program(meta.array(1.0))
