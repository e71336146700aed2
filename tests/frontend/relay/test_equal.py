"""Structural equality of Relay programs: what counts, and what is said of the first difference."""

from __future__ import annotations

import pytest
import torch

from meta.frontend.relay import ast
from meta.frontend.relay.text import parse_text
from tools.relay_text import difference, equal


def differs(a: str, b: str, **options: int | bool) -> str | None:
    found = difference(parse_text(a), parse_text(b), **options)  # type: ignore[arg-type]
    back = difference(parse_text(b), parse_text(a), **options)  # type: ignore[arg-type]
    assert (found is None) == (back is None)
    return found


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("fn (%x, %y) { let %z = %x; (%z, %y) }", "fn (%a, %b) { let %c = %a; (%c, %b) }"),
        ("%0 = f(1); (%0, %0)", "%7 = f(1); (%7, %7)"),
        ("let %x = %x; %x", "let %y = %y; %y"),
        ("(1f, 1f)", "%0 = 1f; (%0, %0)"),
        ("fn [A](%x: A) -> A { %x }", "fn [B](%x: B) -> B { %x }"),
        ("fn (%f: fn [A](A) -> A) { %f }", "fn (%f: fn [T](T) -> T) { %f }"),
        ("fn (%x: _) { %x }", "fn (%x) { %x }"),
        ("f(a=True, b=[1, 2])", "f(b=[True, 2], a=1)"),
        ("f(a=nanf, b=2)", "f(a=nanf, b=2f)"),
        ("nanf", "-nanf"),
        ("f(1) /* ty=int32 */", "f(1)"),
        ("free_var %a: int8; f(%a)", "free_var %b: int8; f(%b)"),
        (
            "match (1) { %a => %a, (_, %b) => %b }",
            "match (1) { %b => %b, (_, %a) => %a }",
        ),
        ("type L[A] { C(A) } def @f() { C(1) }", "type L[B] { C(B) } def @f() { C(1) }"),
    ],
)
def test_the_same(a: str, b: str) -> None:
    assert differs(a, b) is None
    assert equal(parse_text(a), parse_text(b))


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("f(1)", "f(2)", "functions['main'].body.args[0]: the constant 1 (torch.int32) and the"),
        ("f(1)", "g(1)", "functions['main'].body.op.name: 'f' and 'g'"),
        ("f(1)", "f(1, 1)", "functions['main'].body.args: 1 and 2 items"),
        ("f(1)", "(1,)", "functions['main'].body: a Call and a Tuple"),
        ("1", "1i64", "the constant 1 (torch.int32) and the constant 1 (torch.int64)"),
        ("0f", "-0f", "the constant 0.0 (torch.float32) and the constant -0.0"),
        ("f(a=1)", "f(a=2)", "functions['main'].body.attrs['a']: 1 and 2"),
        ("f(a=1)", "f(b=1)", "functions['main'].body.attrs: only one of them has 'a', 'b'"),
        ("f(a=1)", "f()", "functions['main'].body.attrs: only one of them has 'a'"),
        ("f(a=[1, 2])", "f(a=[1])", "attrs['a']: 2 and 1 items"),
        ('f(a="1")', "f(a=1)", "a str and an int"),
        ("f(a=None)", "f(a=0)", "nothing and an int"),
        ('f(a=1, attrs_type_key="A")', 'f(a=1, attrs_type_key="B")', "attrs: A and B"),
        ("%0 = g(1); f(%0, %0)", "f(g(1), g(1))", "args[1]: a Call that is shared"),
        ("fn (%x, %y) { %x }", "fn (%x, %y) { %y }", "body: a Var that is shared"),
        ("fn (%x: int8) { %x }", "fn (%x: int16) { %x }", "params[0].type: "),
        ("fn (%x: int8) { %x }", "fn (%x) { %x }", "params[0].type: "),
        ("fn () -> int8 { 1 }", "fn () { 1 }", "result_type: "),
        ("fn [A, B](%x: A) { %x }", "fn [A, B](%x: B) { %x }", "params[0].type: "),
        ("fn [A](%x: A) { %x }", "fn (%x: int8) { %x }", "type parameters"),
        ("fn (%x, k=1) { %x }", "fn (%x, k=2) { %x }", "functions['main'].attrs['k']: 1 and 2"),
        ("(1, 2).0", "(1, 2).1", "functions['main'].body.index: 0 and 1"),
        ("let %x = 1; %x", "let %x = 1; 1", "functions['main'].body.body: a Var and a Constant"),
        ("match (1) { _ => 1 }", "match? (1) { _ => 1 }", "body.complete: True and False"),
        ("match (1) { _ => 1 }", "match (1) { (_,) => 1 }", "clauses[0].pattern: a PatternWild"),
        ("def @f() { 1 }", "def @g() { 1 }", "functions: only one of them has 'f', 'g'"),
        ("type L { A } def @f() { 1 }", "type L { B } def @f() { 1 }", "types['L']"),
        ("meta[relay.Constant][0]", "meta[relay.Constant][1]", "(meta[relay.Constant][1])"),
        ("meta[relay.Constant][0]", "1", "a constant that the file does not hold"),
    ],
)
def test_the_first_difference(a: str, b: str, expected: str) -> None:
    found = differs(a, b)
    assert found is not None
    assert expected in found


def test_names_count_if_asked() -> None:
    a, b = "fn (%x) { %x }", "fn (%y) { %y }"
    assert differs(a, b, names=True) == "functions['main'].params[0]: %x and %y"
    assert differs(a, a, names=True) is None
    assert differs("fn [A](%x: A) { %x }", "fn [B](%x: B) { %x }", names=True) is not None


def test_digits_of_scalars() -> None:
    a, b = "f(0.70710677f, a=0.70710678f)", "f(0.707107f, a=0.707107f)"
    assert differs(a, b) is not None
    assert differs(a, b, scalar_digits=6) is None
    assert differs(a, b, scalar_digits=8) is not None
    assert differs("1", "2", scalar_digits=1) is not None
    assert differs("1f", "inff", scalar_digits=1) is not None


def test_tensors_are_compared_by_bits() -> None:
    values = torch.tensor([1.0, float("nan"), -0.0])
    a = ast.Constant(values)
    assert equal(a, ast.Constant(values.clone()))
    assert equal(a, ast.Constant(values * torch.tensor([1.0, -1.0, 1.0])))
    assert not equal(a, ast.Constant(values.abs()))
    assert not equal(a, ast.Constant(values[None]))
    assert not equal(a, ast.Constant(values.double()))
    assert equal(a, ast.Constant(torch.stack([values, values]).T[:, 0]))
    half = torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn)
    assert equal(ast.Constant(half), ast.Constant(half.clone()))
    assert not equal(ast.Constant(torch.tensor([1])), ast.Constant(torch.tensor([2])))


def test_what_two_functions_share_does_not_count() -> None:
    body = ast.Call(ast.Op("f"), ())
    one = ast.Module({"f": ast.Function((), body), "g": ast.Function((), body)})
    two = parse_text("def @f() { f() } def @g() { f() }")
    assert difference(one, two) is None


def test_a_long_path_is_cut() -> None:
    def deep(value: str) -> ast.Module:
        return parse_text("fn (%x) {" + "let %x = f(%x);" * 5000 + value + "}")

    found = difference(deep("1"), deep("2"))
    assert found is not None
    assert "steps) ... " in found
    assert len(found) < 500
