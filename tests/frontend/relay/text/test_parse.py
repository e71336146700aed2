"""Relay text of all versions becomes the tree."""

from __future__ import annotations

import pytest
import torch

from meta.frontend.relay import ast
from meta.frontend.relay.text import parse_text
from tools.relay_text import difference

HEADER = '#[version = "0.0.5"]\n'


def main(text: str) -> ast.Function:
    return parse_text(text).functions["main"]


def value(text: str) -> ast.Expr:
    """Return the value of an expression text."""
    return main(text).body


def constant(text: str) -> torch.Tensor:
    found = value(text)
    assert isinstance(found, ast.Constant)
    assert found.value is not None
    return found.value


def test_a_module() -> None:
    module = parse_text(
        HEADER
        + """def @main(%x: Tensor[(2, ?), float32] /* ty=Tensor[(2, ?), float32] */) -> float32 {
  %0 = nn.pad(%x, 0f /* ty=float32 */, pad_width=[[0, 0], [1i64, 1i64]], pad_mode="edge");
  %1 = add(%0, %0) /* ty=Tensor[(2, 4), float32] span=from_string:4:3 */;
  sum(%1, axis=None, keepdims=False, scale=1e-05f)
}
""",
        "a.relay",
    )
    assert module.text_version == "0.0.5"
    assert module.version is None
    assert module.warnings == []
    function = module.functions["main"]
    (x,) = function.params
    assert x.name == "x"
    assert x.type == x.checked_type == ast.TensorType((2, ast.AnyDim()), "float32")
    assert function.result_type == ast.TensorType((), "float32")
    total = function.body
    assert isinstance(total, ast.Call)
    assert total.attrs is not None
    assert total.attrs.fields == {"axis": None, "keepdims": False, "scale": 1e-05}
    (added,) = total.args
    assert isinstance(added, ast.Call)
    assert added.args[0] is added.args[1]
    assert added.checked_type == ast.TensorType((2, 4), "float32")
    assert added.place == ast.Location("a.relay", 4, 8)
    padded = added.args[0]
    assert isinstance(padded, ast.Call)
    assert padded.attrs is not None
    assert padded.attrs.fields == {"pad_width": ((0, 0), (1, 1)), "pad_mode": "edge"}
    assert padded.args[0] is x


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", torch.tensor(3, dtype=torch.int32)),
        ("-3", torch.tensor(-3, dtype=torch.int32)),
        ("--3", torch.tensor(3, dtype=torch.int32)),
        ("2147483648", torch.tensor(2147483648)),
        ("-9223372036854775808i64", torch.tensor(-(2**63))),
        ("7i16", torch.tensor(7, dtype=torch.int16)),
        ("1.5f", torch.tensor(1.5)),
        ("1e-05f", torch.tensor(1e-05)),
        ("1.5", torch.tensor(1.5)),
        ("1.5f64", torch.tensor(1.5, dtype=torch.float64)),
        ("0.1f16", torch.tensor(0.1, dtype=torch.float16)),
        ("3.4028235e+38f", torch.tensor(torch.finfo(torch.float32).max)),
        ("inff", torch.tensor(float("inf"))),
        ("-inff", torch.tensor(-float("inf"))),
        ("inff64", torch.tensor(float("inf"), dtype=torch.float64)),
        ("nanf", torch.tensor(float("nan"))),
        ("nanf16", torch.tensor(float("nan"), dtype=torch.float16)),
        ("-nanf64", torch.tensor(float("nan"), dtype=torch.float64)),
        ("True", torch.tensor(True)),
        ("2 /* ty=int64 */", torch.tensor(2)),
        ("2 /* ty=float64 */", torch.tensor(2.0, dtype=torch.float64)),
        ("1.5 /* ty=float64 span=a:1:2 */", torch.tensor(1.5, dtype=torch.float64)),
        ("300 /* ty=int8 */", torch.tensor(300, dtype=torch.int32)),
        ("1.5 /* ty=int64 */", torch.tensor(1.5)),
        ("2 /* ty=Tensor[(3), int64] */", torch.tensor(2, dtype=torch.int32)),
        ("2i32 /* ty=int64 */", torch.tensor(2, dtype=torch.int32)),
        ("1f /* ty=float64 */", torch.tensor(1.0)),
    ],
)
def test_a_number(text: str, expected: torch.Tensor) -> None:
    found = constant(text)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        # What TVM's parser refuses, and what says the same.
        (
            "fn (%x: (int32, (int32, int32))) { %x.1.0 }",
            "fn (%y: (int32, (int32, int32))) { (%y.1).0 }",
        ),
        ("fn (%x) { split(%x, axis=1).0 }", "fn (%x) { (split(%x, axis=1)).0 }"),
        ("fn (%x) { -%x }", "fn (%x) { negative(%x) }"),
        ("fn (%x) { if (%x) { 1 } else if (%x) { 2 } else { 3 } }",) * 2,
        ("fn (%x) { if (%x) { 1 } }", "fn (%x) { if (%x) { 1 } else { () } }"),
        ("fn (%x) { %x/%x }", "fn (%x) { divide(%x, %x) }"),
        ("fn (%conv1.weight) { %conv1.weight.0 }", "fn (%w) { %w.0 }"),
        (
            "fn (%a.1: int32, %a: (int32,)) { (%a.1, %a.0) }",
            "fn (%p: int32, %q: (int32,)) { (%p, %q.0) }",
        ),
        ("fn (%input:0: int32, %a-b) { %input:0 - %a-b }", "fn (%p: int32, %q) { %p - %q }"),
        ("fn (%a::b: int32, %c:int32) { (%a::b, %c) }", "fn (%p: int32, %q: int32) { (%p, %q) }"),
        ('fn (%"let it, be") { %"let it, be" }', "fn (%x) { %x }"),
        ("fn (%x/y: int32) { %x/y }", "fn (%x: int32) { %x }"),
        (
            "fn (%a b: int32, %c;d[0]: int32) { f(%a b, %c;d[0]) }",
            "fn (%p: int32, %q: int32) { f(%p, %q) }",
        ),
        (
            "fn (%f(x): (int32,), %f) { (%f(x).0, %f(1)) }",
            "fn (%p: (int32,), %q) { (%p.0, %q(1)) }",
        ),
        ("let %x-malformed-ir = 1; %x", "let %x = 1; %x"),
        # Other spellings.
        (
            "fn (%x) { %x * 2f + %x - 1f < %x }",
            "fn (%x) { less(subtract(add(multiply(%x, 2f), %x), 1f), %x) }",
        ),
        ("fn (%x) { %x - %x - %x }", "fn (%x) { (%x - %x) - %x }"),
        ("fn (%x) { %x==%x }", "fn (%x) { equal(%x, %x) }"),
        ("fn (%f) { %f(1f)(2f) }", "fn (%f) { (%f(1f))(2f) }"),
        ("(1f)", "1f"),
        ("{ 1f }", "1f"),
        ("fn (%x) { ref_write(%x, 1f); 2f }", "fn (%x) { let %_ = ref_write(%x, 1f); 2f }"),
        ("fn (%x,) { (%x, 1,) }", "fn (%x) { (%x, 1) }"),
        ("fn (%x) { f(%x, axis=1, k=(2),) }", "fn (%x) { f(%x, axis=1, k=2) }"),
        ("fn (%x) { f(%x, axis=--1) }", "fn (%x) { f(%x, axis=1) }"),
        ("/* a /* nested */ comment */ 1f // and a line", "1f"),
        ("fn (%x /* ty=nonsense[ */) { %x /* span=a:1:2 */ }", "fn (%x) { %x }"),
    ],
)
def test_it_says_the_same(text: str, same: str) -> None:
    assert difference(parse_text(text), parse_text(HEADER + same)) is None
