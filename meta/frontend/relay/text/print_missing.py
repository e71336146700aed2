"""References into a metadata section that a program was read without.

They are written as they were read, so nothing else may get their numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meta.frontend.relay import ast
from meta.frontend.relay.subexpressions import subexpressions


def missing_items(module: ast.Module) -> Iterator[str]:
    """Yield the names of constants, dimensions and attribute values that are missing."""
    seen: set[Any] = set()
    work: list[Any] = [*module.functions.values()]
    work += [c.fields for t in module.types.values() for c in t.constructors]
    while work:
        value = work.pop()
        if isinstance(value, list | tuple | dict):
            work.extend(value.values() if isinstance(value, dict) else value)
            continue
        if value is None or isinstance(value, str | int | float) or value in seen:
            continue
        seen.add(value)
        match value:
            case ast.Constant(value=None, missing=str() as missing):
                yield missing
            case ast.SymbolDim(name=name):
                yield name
            case ast.Opaque(fields=fields):
                yield from (v for k, v in fields if k == "missing" and isinstance(v, str))
        work.extend(_inside(value))


def _inside(value: Any) -> list[Any]:
    """Return what a value holds: expressions, types, attributes."""
    match value:
        case ast.Expr():
            return [*subexpressions(value), value.checked_type, *_beside(value)]
        case ast.TensorType(shape=inner) | ast.TupleType(fields=inner) | ast.DataType(args=inner):
            return [inner]
        case ast.FuncType(params=params, result=result):
            return [params, result]
        case ast.RefType(value=inner):
            return [inner]
        case ast.PatternVar(var=var):
            return [var]
        case ast.PatternConstructor(patterns=patterns) | ast.PatternTuple(patterns=patterns):
            return [patterns]
        case ast.Attrs(fields=inner):
            return [inner]
    return []


def _beside(value: ast.Expr) -> list[Any]:
    """Return what an expression holds beside its parts."""
    match value:
        case ast.Var(type=declared):
            return [declared]
        case ast.Call(attrs=attrs):
            return [attrs]
        case ast.Let(var=var):
            return [var]
        case ast.Function(params=params, result_type=result, attrs=attrs):
            return [params, result, attrs]
        case ast.Match(clauses=clauses):
            return [c.pattern for c in clauses]
    return []
