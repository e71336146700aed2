"""How often each expression of a function is used: what is used more than once gets a number."""

from __future__ import annotations

from meta.frontend.relay import ast
from meta.frontend.relay.text.print_types import attribute_expressions


def parts(value: ast.Expr) -> list[ast.Expr]:
    """Return the direct subexpressions, those in inner scopes included."""
    match value:
        case ast.Call(op=op, args=args, attrs=attrs):
            return [
                op,
                *args,
                *attribute_expressions(tuple(attrs.fields.values()) if attrs else ()),
            ]
        case ast.Tuple(fields=fields):
            return list(fields)
        case ast.TupleGetItem(value=inner) | ast.RefCreate(value=inner):
            return [inner]
        case ast.RefRead(ref=ref):
            return [ref]
        case ast.RefWrite(ref=ref, value=inner):
            return [ref, inner]
        case ast.Let(value=inner, body=body):
            return [inner, body]
        case ast.If(condition=condition, then_branch=then, else_branch=other):
            return [condition, then, other]
        case ast.Function(body=body, attrs=attrs):
            return [body, *attribute_expressions(tuple(attrs.values()))]
        case ast.Match(value=inner, clauses=clauses):
            return [inner, *(c.body for c in clauses)]
    return []


def count_uses(root: ast.Expr) -> dict[ast.Expr, int]:
    """Return by expression in how many places it stands; the root stands in one."""
    uses = {root: 1}
    work = [root]
    while work:
        for part in parts(work.pop()):
            if part not in uses:
                uses[part] = 0
                work.append(part)
            uses[part] += 1
    return uses
