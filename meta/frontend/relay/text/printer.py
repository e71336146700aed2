"""From the tree to Relay text of version 0.0.5, as `mod.astext()` of TVM writes it.

What TVM's text has no form for is written so that `parse_text` reads it back: odd names in quotes,
floating point numbers with all their digits, the module's attributes in the metadata section.
"""

from __future__ import annotations

from collections.abc import Iterator

from meta.frontend.relay import ast
from meta.frontend.relay.text.definitions import VERSION
from meta.frontend.relay.text.print_expressions import FunctionWriter
from meta.frontend.relay.text.print_missing import missing_items
from meta.frontend.relay.text.print_types import type_params
from meta.frontend.relay.text.printing import Shared
from meta.frontend.relay.text.quoting import bare_name
from meta.frontend.relay.text.reader import run


def print_text(module: ast.Module) -> str:
    """Return a program as text that `parse_text` reads back to an equal tree.

    Tensors stand in the metadata section at the end, scalars in place where they have a literal.
    Raises RelayError for a tree that no text says, such as one with a constructor that the module
    does not define.
    """
    shared = Shared(module)
    for text in missing_items(module):
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
