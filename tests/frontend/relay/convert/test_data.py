"""Tests of data types and match; the generic functions are those that programs of TVM often use."""

from __future__ import annotations

import pytest

import meta
from meta.frontend.relay.errors import RelayError
from tests.frontend.relay.convert.running import model_of, run

LIST = """
type List[A] { Cons(A, List[A]), Nil }
type Option[A] { Some(A), None_ }
type Tree[A] { Rose(A, List[Tree[A]]) }

def @map[A, B](%f: fn (A) -> B, %xs: List[A]) -> List[B] {
  match (%xs) { Cons(%x, %rest) => { Cons(%f(%x), @map(%f, %rest)) }, Nil => { Nil } }
}
def @foldl[A, B](%f: fn (A, B) -> A, %acc: A, %bs: List[B]) -> A {
  match (%bs) { Cons(%b, %rest) => { @foldl(%f, %f(%acc, %b), %rest) }, Nil => { %acc } }
}
def @foldr[A, B](%f: fn (A, B) -> B, %bb: B, %as: List[A]) -> B {
  match (%as) { Cons(%a, %rest) => { %f(%a, @foldr(%f, %bb, %rest)) }, Nil => { %bb } }
}
def @rev[A](%xs: List[A]) -> List[A] {
  let %f = fn (%acc: List[A], %x: A) -> List[A] { Cons(%x, %acc) };
  @foldl(%f, Nil, %xs)
}
def @filter[A](%f: fn (A) -> bool, %xs: List[A]) -> List[A] {
  match (%xs) {
    Cons(%x, %rest) => {
      if (%f(%x)) { Cons(%x, @filter(%f, %rest)) } else { @filter(%f, %rest) }
    },
    Nil => { Nil }
  }
}
def @zip[A, B](%xs: List[A], %ys: List[B]) -> List[(A, B)] {
  match ((%xs, %ys)) {
    (Cons(%x, %xr), Cons(%y, %yr)) => { Cons((%x, %y), @zip(%xr, %yr)) },
    _ => { Nil }
  }
}
def @nth[A](%xs: List[A], %n: int32) -> A {
  match? (%xs) { Cons(%x, %rest) => { if (%n == 0) { %x } else { @nth(%rest, %n - 1) } } }
}
def @iota(%n: int32) -> List[int32] {
  let %go = fn (%i: int32) -> List[int32] {
    if (%i == %n) { Nil } else { Cons(%i, %go(%i + 1)) }
  };
  %go(0)
}
def @sum(%xs: List[int32]) -> int32 {
  @foldl(fn (%a: int32, %b: int32) -> int32 { %a + %b }, 0, %xs)
}
def @size[A](%t: Tree[A]) -> int32 {
  match (%t) {
    Rose(_, %ts) => { @sum(@map(fn (%u: Tree[A]) -> int32 { @size(%u) }, %ts)) + 1 }
  }
}
"""
N = meta.array(5, "int32")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("@sum(@iota(%n))", 10),
        ("@sum(@map(fn (%i: int32) -> int32 { %i * %n }, @iota(%n)))", 50),
        ("@sum(@filter(fn (%i: int32) -> bool { %i > 2 }, @iota(%n)))", 7),
        ("@nth(@rev(@iota(%n)), 1)", 3),
        ("@foldr(fn (%a: int32, %b: int32) -> int32 { %a - %b }, 0, @iota(%n))", 2),
        ("@foldl(subtract, %n, @iota(%n))", -5),
        ("@nth(@zip(@iota(%n), @map(negative, @iota(%n))), 3)", (3, -3)),
        ("@size(Rose(%n, Cons(Rose(%n, Nil), Cons(Rose(%n, Cons(Rose(%n, Nil), Nil)), Nil))))", 4),
        ("@sum(@map(fn (%xs: List[int32]) { @sum(%xs) }, Cons(@iota(%n), Cons(Nil, Nil))))", 10),
    ],
)
def test_functions_on_lists_and_trees(body: str, expected: object) -> None:
    assert run(LIST + f"def @main(%n: int32) {{ {body} }}", N) == expected


def test_nested_patterns_are_tried_in_order() -> None:
    text = """
    type List[A] { Cons(A, List[A]), Nil }
    type Option[A] { Some(A), Nothing }
    def @kind(%o: Option[List[int32]]) -> int32 {
      match (%o) {
        Some(Cons(%a, Cons(%b, _))) => { %a * 100 + %b },
        Some(Cons(%a, Nil)) => { %a },
        Some(_) => { -1 },
        Nothing => { -2 }
      }
    }
    def @main(%n: int32) {
      let %none: Option[List[int32]] = Nothing;
      (@kind(Some(Cons(%n, Cons(7, Cons(8, Nil))))), @kind(Some(Cons(%n, Nil))), @kind(Some(Nil)),
       @kind(%none))
    }"""
    assert run(text, N) == (507, 5, -1, -2)


def test_lists_of_tensors_and_of_functions() -> None:
    text = (
        LIST
        + """
    def @main(%x: Tensor[(2), float32]) {
      let %fs = Cons(fn (%y: Tensor[(2), float32]) -> Tensor[(2), float32] { %y + %x },
                     Cons(fn (%y: Tensor[(2), float32]) -> Tensor[(2), float32] { %y * %x }, Nil));
      let %apply = fn (%acc: Tensor[(2), float32],
                       %f: fn (Tensor[(2), float32]) -> Tensor[(2), float32])
                   -> Tensor[(2), float32] { %f(%acc) };
      @foldl(%apply, %x, %fs)
    }"""
    )
    assert run(text, [2.0, 3.0]) == [8.0, 18.0]


def test_a_match_that_nothing_fits_fails_when_it_is_run() -> None:
    model = model_of(LIST + "def @main(%n: int32) { @nth(@iota(%n), 9) }")
    for call in (model, meta.vm.compile(model, N)):
        with pytest.raises(meta.MetaError, match="no clause of the match"):
            call(N)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("{ let %x = Nil; 1 }", None),
        ("{ (@f(Nil), @f(Nil)) } def @f[A](%x: List[A]) -> int32 { 1 }", "not known"),
        ("{ @sum(Cons(1f, Nil)) }", "another type"),
        ("{ @iota(%n) }", "main returns a value"),
        ("{ Cons(%n, Cons(1f, Nil)) }", "another type"),
        ("{ Cons(%n) }", "number of fields"),
        ("{ match (%n) { Nil => { 1 }, _ => { 2 } } }", "matched with a value"),
        ("{ @g(%n) } extern type E def @g(%e: E[]) { 1 }", "another type"),
    ],
)
def test_errors(result: str, message: str | None) -> None:
    model = model_of(f"{LIST} def @main(%n: int32) {result}")
    if message is None:
        model.program(N)
        return
    with pytest.raises(RelayError, match=message):
        model.program(N)


def test_a_type_without_end() -> None:
    types = "type Deep[A] { More(Deep[(A, A)]), End(A) }"
    model = model_of(types + "def @main(%n: int32) { match (End(%n)) { _ => { 1 } } }")
    with pytest.raises(RelayError, match="without end"):
        model.program(N)
