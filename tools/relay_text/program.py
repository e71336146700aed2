"""From the tree to Relay text of version 0.0.5, as `mod.astext()` of TVM writes it.

What TVM's text has no form for is written so that `parse_text` reads it back: odd names in quotes,
floating point numbers with all their digits, the module's attributes in the metadata section.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meta.frontend.relay import ast
from meta.frontend.relay.ast import subexpressions
from meta.frontend.relay.text.parser import VERSION
from meta.frontend.relay.text.reader import run
from tools.relay_text.expressions import FunctionWriter, Shared
from tools.relay_text.literals import bare_name
from tools.relay_text.types import type_params


def print_text(module: ast.Module) -> str:
    """Return a program as text that `parse_text` reads back to an equal tree.

    Tensors stand in the metadata section at the end, scalars in place where they have a literal.
    Raises RelayError for a tree that no text says, such as one with a constructor that the module
    does not define.
    """
    shared = Shared(module)
    for text in _missing_items(module):
        shared.metadata.reserve(text)
    definitions = "\n\n".join(_definitions(module, shared))
    return f'#[version = "{VERSION}"]\n{definitions}\n{shared.metadata.section(module)}'


def _definitions(module: ast.Module, shared: Shared) -> Iterator[str]:
    for definition in module.types.values():
        yield _type_definition(definition, shared)
    for name, function in module.functions.items():
        yield run(FunctionWriter(shared, function).definition(name, function))


def _type_definition(definition: ast.TypeDefinition, shared: Shared) -> str:
    head = f"type {bare_name(definition.name)}{type_params(definition.type_params)}"
    if definition.extern:
        return f"extern {head}"
    lines = [f"{head} {{"]
    for constructor in definition.constructors:
        fields = [shared.types.text(t) for t in constructor.fields]
        arguments = f"({', '.join(fields)})" if fields else ""
        lines.append(f"  {bare_name(constructor.name)}{arguments},")
    return "\n".join([*lines, "}"])


def _missing_items(module: ast.Module) -> Iterator[str]:
    """Yield the references into a metadata section that the program was read without.

    They are written as they were read, so nothing else may get their numbers.
    """
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
