"""From the tree to Relay text of version 0.0.5, as `mod.astext()` of TVM writes it.

What TVM's text has no form for is written so that `parse_text` reads it back: odd names in quotes,
floating point numbers with all their digits, the module's attributes in the metadata section.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from meta.frontend.relay import ast
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
    seen: set[int] = set()
    work: list[Any] = [module.functions, module.types]
    while work:
        value = work.pop()
        if isinstance(value, list | tuple | dict):
            work.extend(value.values() if isinstance(value, dict) else value)
            continue
        if not is_dataclass(value) or id(value) in seen:
            continue
        seen.add(id(value))
        match value:
            case ast.Constant(value=None, missing=str() as missing):
                yield missing
            case ast.SymbolDim(name=name):
                yield name
            case ast.Opaque(fields=stated):
                yield from (v for k, v in stated if k == "missing" and isinstance(v, str))
        work.extend(getattr(value, f.name) for f in fields(value))
