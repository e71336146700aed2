"""The helpers of passes, and the builder."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from meta.base.errors import IRError
from meta.ir import (
    BlockBuilder,
    Call,
    Function,
    FuncType,
    GlobalVar,
    If,
    Module,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Var,
    binders,
    bindings,
    free_vars,
    operands,
    parse_function,
    structural_equal,
    substitute,
    type_of,
    verify,
    with_fresh_vars,
)
from meta.ir.visit import rename_globals
from tests.ir.programs import ADD, SUM, modules

F2 = TensorType((2,), "float32")

NESTED = """fn(%x: float32[2], %p: bool[]) {
  %0 = if %p {
    %1 = test_sum(%x)
    yield %1
  } else {
    %2 = fn(%a) {
      %3 = test_add(%a, %x)
      return %3
    }
    %4 = %2(%x)
    yield %4
  }
  %5 = (%0, %x)
  return %5
}"""


def nested() -> Function:
    return parse_function(NESTED)


def test_operands() -> None:
    x, y = Var("x"), Var("y")
    assert list(operands(Call(ADD, (x, Tuple((y, Tuple((x,)))), 1, None)))) == [ADD, x, y, x]
    assert list(operands(TupleGetItem(x, 0))) == [x]
    assert [str(o) for o in operands(GlobalVar("f"))] == ["@f"]
    value = nested().body.bindings[0].value
    assert isinstance(value, If)
    assert list(operands(value)) == [value.condition]


def test_bindings_come_in_the_order_of_the_text() -> None:
    assert [b.var.name for b in bindings(nested())] == ["0", "1", "2", "3", "4", "5"]
    assert [v.name for v in binders(nested())] == ["x", "p", "0", "1", "2", "a", "3", "4", "5"]


def test_free_vars() -> None:
    function = nested()
    assert free_vars(function) == []
    x, p = function.params
    assert free_vars(function.body) == [p, x]


def test_substitute_reaches_nested_blocks_and_shares_the_rest() -> None:
    function = nested()
    x, _ = function.params
    z = Var("z", F2)
    new = substitute(function.body, {x: z})
    assert z in free_vars(new)
    assert x not in free_vars(new)
    assert substitute(function.body, {Var("w"): z}) is function.body


@pytest.mark.heavy
@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(modules())
def test_with_fresh_vars_is_equal_and_shares_no_variable(module: Module) -> None:
    for name, function in module.functions.items():
        copy = with_fresh_vars(function)
        assert structural_equal(copy, function)
        assert not set(binders(copy)) & set(binders(function))
        verify(module.with_functions({**module.functions, name + "_copy": copy}))


def test_rename_globals_reaches_nested_blocks() -> None:
    text = """fn(%x: float32[2], %p: bool[]) {{
      %0 = if %p {{
        %1 = @{f}(%x, @g)
        yield %1
      }} else {{
        %2 = fn(%a) {{
          %3 = @{f}(%a, @{f})
          return %3
        }}
        %4 = %2(%x)
        yield %4
      }}
      return %0
    }}"""
    found = rename_globals(parse_function(text.format(f="f")), {"f": "h", "unused": "g"})
    assert structural_equal(found, parse_function(text.format(f="h")))


def test_builder() -> None:
    x = Var("x", F2)
    builder = BlockBuilder()
    a = builder.emit(Call(ADD, (x, x)), F2, "y")
    b = builder.emit(Tuple((a, x)), name="y")
    c = builder.emit(TupleGetItem(b, 0))
    assert (a.name, b.name, c.name) == ("y", "y_1", "")
    assert b.type == TupleType((F2, F2))
    assert c.type == F2
    assert builder.emit(Call(SUM, (c, -1, False))).type is None
    block = builder.finish(c)
    verify(Module({"main": Function((x,), block, F2)}))
    with pytest.raises(IRError, match="finished"):
        builder.emit(x)


def test_type_of_follows_structure() -> None:
    f = Var("f", FuncType((F2,), F2))
    assert type_of(Call(f, (Var("x", F2),))) == F2
    assert type_of(Call(ADD, ())) is None
    assert type_of(Tuple((Var("x"),))) is None
    assert type_of(TupleGetItem(Tuple((Var("x", F2),)), 1)) is None
