"""What counts as the same program."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meta.base.source import Span
from meta.ir import (
    Binding,
    Block,
    Call,
    Constant,
    Function,
    Module,
    OpNode,
    Var,
    first_difference,
    parse,
    parse_function,
    structural_equal,
    structural_hash,
)
from tests.conftest import run_python
from tests.ir.programs import ADD, BARE, literals

BASE = "fn(%x: float32[2], %y: float32[2]) { %0 = test_add(%x, %y) return %0 }"


def test_names_and_spans_do_not_count() -> None:
    a = parse_function(BASE)
    b = parse_function(
        "fn(%q: float32[2], %p: float32[2]) {\n%r = test_add(%q, %p) # f:1\nreturn %r}"
    )
    assert structural_equal(a, b)
    assert structural_hash(a) == structural_hash(b)
    assert first_difference(a, b) is None


@pytest.mark.parametrize(
    "other",
    [
        BASE.replace("test_add(%x, %y)", "test_add(%y, %x)"),
        BASE.replace("test_add(%x, %y)", "test_bare(%x, %y)"),
        BASE.replace("%0 = ", "%0: float32[2] = "),
        BASE.replace("return %0", "return %x"),
        BASE.replace("%y: float32[2]", "%y: float32[n]"),
        BASE.replace("float32[2])", "float32[2]) -> float32[2]"),
        BASE.replace("float32[2])", 'float32[2]) attrs(a="b")'),
        BASE.replace("return", "%1 = (%x,) return"),
    ],
)
def test_differences_count(other: str) -> None:
    a, b = parse_function(BASE), parse_function(other)
    assert not structural_equal(a, b)
    assert structural_hash(a) != structural_hash(b)
    assert first_difference(a, b) is not None


@given(literals, literals)
def test_literals_compare_with_their_type(a: object, b: object) -> None:
    def call(value: object) -> Call:
        return Call(BARE, (value,))

    assert structural_equal(call(a), call(a))
    assert structural_equal(call(a), call(b)) == (repr(a) == repr(b))


@pytest.mark.parametrize(
    ("a", "b"), [(1, 1.0), (1, True), (0.0, -0.0), (0, None), ("1", 1), ((), "")]
)
def test_literals_that_python_confuses(a: object, b: object) -> None:
    assert not structural_equal(Call(BARE, (a,)), Call(BARE, (b,)))


@given(st.floats(width=32), st.floats(width=32))
def test_constants_compare_by_bytes(a: float, b: float) -> None:
    x, y = (Constant(torch.tensor([v], dtype=torch.float32)) for v in (a, b))
    same = x.data.numpy().tobytes() == y.data.numpy().tobytes()
    assert structural_equal(x, y) == same


def test_shape_and_dtype_of_constants_count() -> None:
    zeros = torch.zeros(4, dtype=torch.int32)
    assert not structural_equal(Constant(zeros), Constant(zeros.reshape(2, 2)))
    assert not structural_equal(Constant(zeros), Constant(zeros.view(torch.float32)))
    assert structural_equal(Constant(zeros.reshape(2, 2).T), Constant(zeros.reshape(2, 2)))


def test_free_variables_are_equal_if_they_are_the_same() -> None:
    x, y = Var("x"), Var("x")
    assert structural_equal(Call(ADD, (x, y)), Call(ADD, (x, y)))
    assert not structural_equal(Call(ADD, (x, y)), Call(ADD, (y, x)))
    assert structural_equal(Block((), x), Block((), x))
    assert structural_equal(Binding(y, x), Binding(Var("z"), x, Span("f", 1)))


def test_the_order_of_functions_does_not_count() -> None:
    f = parse_function(BASE)
    g = Function((), Block((), OpNode("o")))
    assert structural_equal(Module({"f": f, "g": g}), Module({"g": g, "f": f}))
    assert not structural_equal(Module({"f": f}), Module({"g": f}))
    assert not structural_equal(Module({"f": f}), f)


def test_first_difference_shows_both_bindings() -> None:
    a, b = (
        parse(f"func @main(%x) {{ %a = test_sum(%x) %b = test_sum(%a, axis={axis}) return %b }}")
        for axis in (1, 2)
    )
    assert first_difference(a, b) == (
        "  in @main: %b = test_sum(%a, axis=1)\n"
        "  in @main: %b = test_sum(%a, axis=2)\n"
        "  1  is not  2"
    )


def test_first_difference_shows_results() -> None:
    a, b = (parse_function(f"fn(%x, %y) {{ return {name} }}") for name in ("%x", "%y"))
    assert first_difference(a, b) == (
        "  in the function: the result %x\n  in the function: the result %y\n  %0  is not  %1"
    )


def test_the_hash_is_the_same_in_every_process() -> None:
    script = (
        "from meta.ir import Block, Call, Function, OpNode, Var, structural_hash\n"
        "x = Var('x')\n"
        "print(structural_hash(Function((x,), Block((), x), None, {'a': 'b', 'c': 1.5})))"
    )
    x = Var("x")
    here = structural_hash(Function((x,), Block((), x), None, {"a": "b", "c": 1.5}))
    assert run_python("-c", script) == f"{here}\n"
