"""Tests of `Order`: each node once, in the innermost scope around its uses, from left to right."""

from __future__ import annotations

from typing import Any

import pytest

from meta.frontend.relay import ast
from meta.frontend.relay.convert.program import Bind, Order
from meta.frontend.relay.errors import RelayError

X, C = ast.Var("x"), ast.Var("c")


def call(name: str, *args: ast.Expr) -> ast.Call:
    return ast.Call(ast.Op(name), args)


def order(body: ast.Expr) -> Order:
    return Order(ast.Function((X, C), body))


def steps(scope: Any) -> list[str]:
    def name(step: Any) -> str:
        if isinstance(step, Bind):
            return f"let {step.let.var.name}"
        return str(step.op.name) if isinstance(step, ast.Call) else type(step).__name__

    return [name(s) for s in scope.steps]


def test_operands_come_first_from_left_to_right() -> None:
    shared = call("a", X)
    assert steps(order(call("d", call("b", shared), call("c", shared))).root) == list("abcd")


def test_what_both_branches_use_is_evaluated_before_the_if_and_after_its_condition() -> None:
    shared = call("shared", X)
    node = ast.If(call("less", X), call("a", shared), call("b", call("only", shared)))
    found = order(node)
    assert steps(found.root) == ["less", "shared", "If"]
    assert [steps(s) for s in found.scopes[node]] == [["a"], ["only", "b"]]


def test_what_only_a_nested_scope_uses_is_evaluated_there() -> None:
    inner = call("inner", X)
    middle = ast.If(C, inner, call("a", inner))
    outer = ast.If(C, middle, X)
    found = order(outer)
    assert steps(found.root) == ["If"]
    assert steps(found.scopes[outer][0]) == ["inner", "If"]


def test_lets_in_order_and_functions_with_what_they_capture() -> None:
    y, f, z = ast.Var("y"), ast.Var("f"), ast.Var("z")
    function = ast.Function((z,), call("add", z, y))
    body = ast.Let(y, call("a", X), ast.Let(f, function, ast.Call(f, (y,))))
    found = order(body)
    assert steps(found.root)[:4] == ["a", "let y", "Function", "let f"]
    (scope,) = found.scopes[function]
    assert found.free(scope) == (y,)
    assert found.uses[f] == 1
    assert f in found.called


def test_a_recursive_function_is_free_in_itself() -> None:
    f, z = ast.Var("f"), ast.Var("z")
    function = ast.Function((z,), ast.Call(f, (z,)))
    found = order(ast.Let(f, function, ast.Call(f, (X,))))
    assert found.free(found.scopes[function][0]) == (f,)


def test_arms_bind_the_variables_of_their_patterns() -> None:
    a, b = ast.Var("a"), ast.Var("b")
    pattern = ast.PatternTuple((ast.PatternVar(a), ast.PatternTuple((ast.PatternVar(b),))))
    node = ast.Match(X, (ast.Clause(pattern, call("add", a, b, C)),))
    found = order(node)
    (arm,) = found.scopes[node]
    assert arm.variables == (a, b)
    assert found.free(arm) == (C,)


def test_nested_ifs_that_share_nodes_are_linear() -> None:
    node: ast.Expr = X
    for _ in range(2000):
        node = ast.If(C, call("a", node), call("b", node))
    assert len(order(node).nodes) == 6000


@pytest.mark.parametrize("form", ["calls", "lets", "tuples"])
def test_a_long_program_needs_no_recursion(form: str) -> None:
    count = 20_000
    node: ast.Expr = X
    if form == "lets":
        variables = [ast.Var(f"v{i}") for i in range(count)]
        node = variables[-1]
        for i in reversed(range(count)):
            node = ast.Let(variables[i], call("a", variables[i - 1] if i else X), node)
    for _ in range(count):
        if form == "calls":
            node = call("a", node)
        elif form == "tuples":
            node = ast.TupleGetItem(ast.Tuple((node, X)), 0)
    assert len(order(node).nodes) >= count


def test_scopes_may_not_nest_without_end() -> None:
    node: ast.Expr = X
    for _ in range(ast.MAX_NESTING + 1):
        node = ast.If(C, call("a", node), X)
    with pytest.raises(RelayError, match="nested more than 200"):
        order(node)
