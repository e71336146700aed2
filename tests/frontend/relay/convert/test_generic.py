"""Tests of generic functions of higher order whose types follow from one another."""

from __future__ import annotations

import pytest

import meta
from tests.frontend.relay.convert.running import run

FUNCTIONS = """
type List[A] { Cons(A, List[A]), Nil }
type Option[A] { Some(A), None }
def @id[A](%x: A) -> A { %x }
def @compose[A, B, C](%f: fn (B) -> C, %g: fn (A) -> B) -> fn (A) -> C {
  fn (%x: A) -> C { %f(%g(%x)) }
}
def @iterate[A](%f: fn (A) -> A, %n: int32) -> fn (A) -> A {
  if (%n == 0) { @id } else { @compose(%f, @iterate(%f, %n - 1)) }
}
def @foldl[A, B](%f: fn (A, B) -> A, %acc: A, %bs: List[B]) -> A {
  match (%bs) { Cons(%b, %rest) => { @foldl(%f, %f(%acc, %b), %rest) }, Nil => { %acc } }
}
def @accumulate[A, B, C](%f: fn (A, B) -> (A, C), %acc: A, %xs: List[B]) -> (A, List[C]) {
  @foldl(fn (%a: (A, List[C]), %x: B) -> (A, List[C]) {
    let %r = %f(%a.0, %x);
    (%r.0, Cons(%r.1, %a.1))
  }, (%acc, Nil), %xs)
}
def @unfold[A, B](%f: fn (A) -> Option[(A, B)], %s: A) -> List[B] {
  let %go = fn (%t: A, %acc: List[B]) -> List[B] {
    match (%f(%t)) { Some((%next, %b)) => { %go(%next, Cons(%b, %acc)) }, None => { %acc } }
  };
  %go(%s, Nil)
}
def @first(%xs: List[int32]) -> int32 { match? (%xs) { Cons(%x, _) => { %x } } }
"""
SUM_AND_PRODUCT = "fn (%a: int32, %x: int32) -> (int32, int32) { (%a + %x, %a * %x) }"
SQUARES = """fn (%i: int32) -> Option[(int32, int32)] {
  if (%i == 0) { None } else { Some((%i - 1, %i * %i)) }
}"""
TWICE = """fn (%f: fn (int32) -> int32) -> fn (int32) -> int32 {
  fn (%y: int32) -> int32 { %f(%f(%y)) }
}"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("@iterate(fn (%y: int32) -> int32 { %y * 2 }, 4)(%n)", 80),
        ("@iterate(fn (%y: int32) -> int32 { %y * 2 }, %n)(1)", 32),
        (
            f"let %r = @accumulate({SUM_AND_PRODUCT}, %n, Cons(1, Cons(2, Nil))); "
            "(%r.0, @first(%r.1))",
            (8, 12),
        ),
        (f"@first(@unfold({SQUARES}, %n))", 1),
        (f"let %t = {TWICE}; %t(%t(fn (%y: int32) -> int32 {{ %y + %n }}))(1)", 21),
    ],
)
def test_types_follow_from_functions(body: str, expected: object) -> None:
    assert run(FUNCTIONS + f"def @main(%n: int32) {{ {body} }}", meta.array(5, "int32")) == expected
