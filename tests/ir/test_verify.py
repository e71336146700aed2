"""Each rule of the verifier: one program that breaks it, and what the error says."""

from __future__ import annotations

import pytest
import torch

from meta.base.errors import IRError
from meta.base.source import Span
from meta.ir import (
    Binding,
    Block,
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    Module,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Type,
    Var,
    parse,
    verify,
)
from meta.ir.literals import MAX_NESTING
from tests.ir.programs import ADD, BARE, SUM

F2 = TensorType((2,), "float32")
F3 = TensorType((3,), "float32")
BOOL = TensorType((), "bool")
LINE = Span("model.py", 7)


def program(value: Expr, type_: Type | None = None, params: tuple[Var, ...] = ()) -> Module:
    """Return a module whose main binds one value."""
    var = Var("r", type_)
    return Module({"main": Function(params, Block((Binding(var, value, LINE),), var))})


def message(module: Module, *, typed: bool = False) -> str:
    with pytest.raises(IRError) as caught:
        verify(module, typed=typed)
    return str(caught.value)


x = Var("x", F2)
p = Var("p", BOOL)
t = Var("t", TupleType((F2, F3)))
untyped = Var("u")


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (Call(ADD, (x, Var("y"))), "argument 1, %y, is used before it is bound or outside"),
        (Tuple((Var("y"),)), "a field of a tuple, %y, is used before"),
        (Call(Var("f"), ()), "the callee, %f, is used before"),
        (Call(ADD, (x, Call(ADD, (x, x)))), "argument 1 is a Call"),
        (Call(ADD, (x, torch.float32)), "argument 1 is a dtype"),
        (Call(BARE, ((x,),)), "argument 0 is a tuple"),
        (Call(ADD, (x,)), "test_add has 2 slots and is given 1 arguments"),
        (Call(Tuple(()), ()), "the callee is not a function"),
        (Call(x, ()), "%x is called and is no function: float32[2]"),
        (GlobalVar("mian"), "there is no function @mian"),
        (Tuple((Tuple((Call(ADD, (x, x)),)),)), "a field of a tuple is a Call"),
        (Block((), x), "the value is a Block"),  # type: ignore[list-item]
        (TupleGetItem(t, 2), "there is no field 2"),
        (TupleGetItem(t, -1), "there is no field -1"),
        (TupleGetItem(x, 0), "a field is taken of %x, which is float32[2]"),
        (If(x, Block((), x), Block((), x)), "the condition has type float32[2]"),
        (If(p, Block((), x), Block((), t)), "the blocks yield float32[2] and (float32[2]"),
        (If(p, Block((), x), Block((), Call(ADD, (x, x)))), "the result is a Call"),
        (If(Call(ADD, (x, x)), Block((), x), Block((), x)), "the condition is a Call"),
        (Constant(torch.zeros(2, dtype=torch.float8_e5m2fnuz)), "the element type"),
        (Function((Var("a", F2),), Block((), x), F3), "the result %x has type float32[2]"),
        (Function((x,), Block((), x)), "%x is bound twice"),
        (Function((), Block((), x), None, {"a": [1]}), "the attribute 'a' is not a literal"),
    ],
)
def test_values(value: Expr, what: str) -> None:
    found = message(program(value, None, (x, p, t)))
    assert found.startswith("in @main: ")
    assert what in found
    assert "found:    %r = " in found
    assert "at:       model.py:7" in found


@pytest.mark.parametrize(
    ("value", "type_"),
    [
        (x, F3),
        (x, TensorType((2,), "float64")),
        (x, TensorType((2, 1), "float32")),
        (Tuple((x, x)), TupleType((F2, F3))),
        (TupleGetItem(t, 1), F2),
        (If(p, Block((), x), Block((), x)), F3),
        (If(p, Block((), untyped), Block((), x)), F3),
        (Constant(torch.zeros(2)), F3),
    ],
)
def test_declared_types_fit(value: Expr, type_: Type) -> None:
    assert "the value has type" in message(program(value, type_, (x, p, t, untyped)))


def test_unknown_dimensions_fit_anything() -> None:
    verify(
        parse(
            "func @main(%x: float32[2], %u: float32[?], %p: bool[]) -> float32[2] {\n"
            "%0: float32[?] = if %p { yield %x } else { yield %u }\n"
            "return %0 }"
        ),
        typed=True,
    )


CALLEE = (
    "func @f(%a: float32[n], %b: float32[n]) -> float32[n, 2] { %r = test_add(%a, %b) return %r }"
)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("%0: float32[3, 2] = @f(%x, %x)", None),
        ("%0: float32[3, 2] = @f(%x, %y)", "argument 1 has type float32[4]"),
        ("%0: float32[3, 2] = @f(%x)", "@f has 2 parameters and is given 1 arguments"),
        ("%0: float32[4, 2] = @f(%x, %x)", "the value has type float32[3, 2]"),
        ("%0: float32[4, 2] = %g(%x)", "the value has type float32[3, 2]"),
        ("%0: float32[3, 2] = %g((%x,))", "argument 0 has type (float32[3],)"),
        ("%0: fn(float32[m]) -> float32[m, 2] = %g", None),
    ],
)
def test_calls_of_functions(line: str, what: str | None) -> None:
    module = parse(
        f"{CALLEE}\nfunc @main(%x: float32[3], %y: float32[4], "
        f"%g: fn(float32[m]) -> float32[m, 2]) {{ {line} return %0 }}"
    )
    if what is None:
        verify(module)
    else:
        assert what in message(module)


def test_scopes_end() -> None:
    y = Var("y")
    inner = Block((Binding(y, Call(ADD, (x, x))),), y)
    value = If(p, inner, Block((), y))
    assert "the result, %y, is used before it is bound or outside" in message(
        program(value, None, (x, p))
    )
    closure = Function((y,), Block((), y))
    var = Var("f")
    body = Block((Binding(var, closure),), y)
    assert "the result, %y," in message(Module({"main": Function((), body)}))
    f = Function((x,), Block((), x))
    assert "in @g: the result, %x," in message(Module({"f": f, "g": Function((), Block((), x))}))


def test_variables_are_bound_once_in_the_module() -> None:
    f = Function((x,), Block((), x))
    assert "in @g: %x is bound twice" in message(Module({"f": f, "g": f}))
    y = Var("y")
    twice = Block((Binding(y, x), Binding(y, x, LINE)), y)
    found = message(Module({"f": Function((x,), twice)}))
    assert "%y is bound twice" in found
    assert "model.py:7" in found


def test_typed_asks_for_every_type() -> None:
    good = parse(
        "func @main(%x: float32[2]) -> float32[2] { %0: float32[2] = test_sum(%x) return %0 }"
    )
    verify(good, typed=True)
    for source, what in [
        ("func @main(%x) -> float32[2] { return %x }", "%x has no type"),
        ("func @main(%x: float32[2]) { return %x }", "a function has no result type"),
        ("func @main() -> int64[] { %0 = const int64[] 1 return %0 }", "%0 has no type"),
    ]:
        module = parse(source)
        verify(module)
        assert what in message(module, typed=True)


def test_types_can_be_written_down() -> None:
    bad = Var("b", TupleType((TensorType((2,), "float33"),)))
    assert "'float33' is no dtype" in message(Module({"f": Function((bad,), Block((), bad))}))
    bad = Var("b", TensorType((-1,), "float32"))
    assert "negative dimension" in message(Module({"f": Function((bad,), Block((), bad))}))


def test_nesting_is_limited() -> None:
    block = Block((), x)
    for _ in range(5000):
        var = Var("")
        block = Block((Binding(var, If(p, block, Block((), x))),), var)
    main = Function((p, x), block)
    assert f"blocks are nested more than {MAX_NESTING} deep" in message(Module({"main": main}))
    atom: Expr = x
    for _ in range(5000):
        atom = Tuple((atom,))
    main = Function((x,), Block((), Call(SUM, (atom, -1, False))))
    with pytest.raises(IRError):
        verify(Module({"main": main}))


def test_the_deepest_program_that_passes_also_prints_and_parses() -> None:
    block = Block((), x)
    for _ in range(MAX_NESTING):
        var, condition = Var(""), Var("c", BOOL)
        closure = Function((condition,), block)
        block = Block((Binding(var, closure),), var)
    module = Module({"main": Function((x,), block)})
    verify(module)
    verify(parse(str(module)))
