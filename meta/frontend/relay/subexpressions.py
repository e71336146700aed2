"""What a node of the tree holds: its operands, its inner scopes, the variables that it binds.

A new kind of expression has its row in each function here, next to those of `ast`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meta.frontend.relay import ast


def operands(value: ast.Expr) -> list[ast.Expr]:
    """Return what is evaluated before an expression and in its scope. A let has no operands."""
    match value:
        case ast.Call(op=op, args=args, attrs=attrs):
            fields = tuple(attrs.fields.values()) if attrs else ()
            return [op, *args, *attribute_expressions(fields)]
        case ast.Tuple(fields=fields):
            return list(fields)
        case ast.TupleGetItem(value=inner) | ast.RefCreate(value=inner) | ast.Match(value=inner):
            return [inner]
        case ast.RefRead(ref=ref):
            return [ref]
        case ast.RefWrite(ref=ref, value=inner):
            return [ref, inner]
        case ast.If(condition=condition):
            return [condition]
        case ast.Function(attrs=attrs):
            return attribute_expressions(tuple(attrs.values()))
    return []


def subexpressions(value: ast.Expr) -> list[ast.Expr]:
    """Return the direct subexpressions: operands, then what stands in inner scopes, in order."""
    match value:
        case ast.Let(value=inner, body=body):
            return [inner, body]
        case ast.If(then_branch=then, else_branch=other):
            return [*operands(value), then, other]
        case ast.Function(body=body):
            return [*operands(value), body]
        case ast.Match(clauses=clauses):
            return [*operands(value), *(c.body for c in clauses)]
    return operands(value)


def bound_variables(value: ast.Expr) -> list[ast.Var]:
    """Return the variables that an expression binds in its inner scopes."""
    match value:
        case ast.Let(var=var):
            return [var]
        case ast.Function(params=params):
            return list(params)
        case ast.Match(clauses=clauses):
            return [var for c in clauses for var in pattern_variables(c.pattern)]
    return []


def pattern_variables(pattern: ast.Pattern) -> Iterator[ast.Var]:
    """Yield the variables that a pattern binds, from left to right."""
    stack = [pattern]
    while stack:
        found = stack.pop()
        if isinstance(found, ast.PatternVar):
            yield found.var
        elif isinstance(found, ast.PatternConstructor | ast.PatternTuple):
            stack += reversed(found.patterns)


def attribute_expressions(value: Any) -> list[ast.Expr]:
    """Return the expressions in the value of an attribute, but for constants."""
    found: list[ast.Expr] = []
    work = [value]
    while work:
        part = work.pop()
        if isinstance(part, tuple | list):
            work.extend(reversed(part))
        elif isinstance(part, ast.Expr) and not isinstance(part, ast.Constant):
            found.append(part)
    return found


def free_variables(expression: ast.Expr) -> tuple[ast.Var, ...]:
    """Return the variables that an expression uses and does not bind, in the order of their first
    use. A variable is bound in one place only: it is known by its node, not by its name.
    """
    used: dict[ast.Var, None] = {}
    bound: set[ast.Var] = set()
    seen: set[ast.Expr] = set()
    stack = [expression]
    while stack:
        current = stack.pop()
        if current in seen:
            continue
        seen.add(current)
        if isinstance(current, ast.Var):
            used[current] = None
            continue
        bound.update(bound_variables(current))
        stack.extend(reversed(subexpressions(current)))
    return tuple(v for v in used if v not in bound)
