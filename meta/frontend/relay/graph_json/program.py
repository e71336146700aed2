"""The root of a JSON graph: a module, or what is taken for one."""

from __future__ import annotations

from typing import Any, NoReturn

from meta.frontend.relay import ast
from meta.frontend.relay.ast import free_variables
from meta.frontend.relay.errors import RelayError
from meta.frontend.relay.graph_json import nodes, values
from meta.frontend.relay.graph_json.document import OBJECT, decode, read_document, type_key
from meta.frontend.relay.graph_json.nodes import type_names
from meta.frontend.relay.graph_json.resolve import Kind, Resolver

Fields = dict[str, Any]


def _type_definition(resolver: Resolver, index: int, fields: Fields) -> ast.TypeDefinition:
    header = resolver.expect(index, fields["header"], ast.DataType, "its name")
    found = resolver.each(index, fields["constructors"], ast.Constructor, "constructor")
    names = [c.name for c in found]
    if len(set(names)) != len(names):
        resolver.fail(index, "two of its constructors have one name")
    constructors = tuple(
        ast.ConstructorDefinition(c.name, resolver.constructor_fields[c]) for c in found
    )
    return ast.TypeDefinition(
        header.name, type_names(resolver, index, fields["type_vars"]), constructors
    )


def _functions(resolver: Resolver, index: int, found: dict[Any, Any]) -> dict[str, ast.Function]:
    functions: dict[str, ast.Function] = {}
    for key, value in found.items():
        name = key.name if isinstance(key, ast.GlobalVar) else key
        if not isinstance(name, str):
            resolver.fail(index, "a function's name is no name")
        if name in functions:
            resolver.fail(index, f"two functions are called {name[:60]!r}")
        functions[name] = resolver.expect(
            index, value, ast.Function, f"what the module has as {name[:60]!r}"
        )
    return functions


def _module(resolver: Resolver, index: int, fields: Fields) -> ast.Module:
    found = resolver.expect(index, fields["functions"], dict, "its functions", {})
    functions = _functions(resolver, index, found)
    definitions: dict[str, ast.TypeDefinition] = {}
    found = resolver.expect(index, fields["type_definitions"], dict, "its types", {})
    for value in found.values():
        definition = resolver.expect(index, value, ast.TypeDefinition, "a type's definition")
        if definition.name in definitions:
            resolver.fail(index, f"two types are called {definition.name[:60]!r}")
        definitions[definition.name] = definition
    attrs = resolver.expect(index, fields["attrs"], dict, "its attributes", {})
    return ast.Module(functions, definitions, dict(attrs))


_KINDS: dict[str, Kind] = {
    **values.KINDS,
    **nodes.KINDS,
    "relay.TypeData": Kind(
        _type_definition, {"header": OBJECT, "type_vars": OBJECT, "constructors": OBJECT}
    ),
    "IRModule": Kind(_module, {"functions": OBJECT, "type_definitions": OBJECT, "attrs": OBJECT}),
}
_FOREIGN = {
    "tir.PrimFunc": "a function of TVM's tensor level, as lowering makes it",
    "relay.ExternalFunction": "a function that is not in the file",
}


def _known_kind(resolver: Resolver, key: str) -> Kind | None:
    return _KINDS.get(key) or values.attributes_kind(key, resolver.document.version)


def _kind_in_table(resolver: Resolver, index: int) -> Kind:
    """Return how a node of a metadata section is read: what is not known as an `Opaque`."""
    key = type_key(resolver.document.nodes[index].type_key)
    return _known_kind(resolver, key) or (values.OPAQUE if key else _kind_of(resolver, index))


def _kind_of(resolver: Resolver, index: int) -> Kind:
    """Return how a node is read. Raises RelayError for a type key that Relay does not have."""
    key = type_key(resolver.document.nodes[index].type_key)
    kind = _known_kind(resolver, key)
    if kind is not None:
        return kind
    if key.startswith("relax."):
        resolver.fail(index, "part of a Relax program", hint="use meta.frontend.relax")
    if key in _FOREIGN:
        resolver.fail(index, _FOREIGN[key], hint="save the module before it is compiled or lowered")
    if not key:
        resolver.fail(index, f"node {index} is null, which only node 0 may be")
    resolver.fail(index, "an object of this type is not known")


def _no_program(resolver: Resolver, why: str) -> NoReturn:
    key = resolver.document.nodes[resolver.document.root].type_key
    raise RelayError(
        f"the root of this JSON, {key or 'null'!r}, is no program: {why}",
        place=resolver.place(resolver.document.root),
        hint="save a module or a function",
    )


def _as_main(value: ast.Expr) -> dict[str, ast.Function]:
    if isinstance(value, ast.Function):
        return {"main": value}
    main = ast.Function(free_variables(value), value, value.checked_type)
    main.place = value.place
    return {"main": main}


def _program(resolver: Resolver, value: Any) -> ast.Module:
    """Return the module that a root is or is taken for."""
    if isinstance(value, ast.Module):
        return value
    if isinstance(value, ast.Expr):
        return ast.Module(_as_main(value))
    if isinstance(value, dict) and value:
        if all(isinstance(v, ast.Function) for v in value.values()):
            return ast.Module(_functions(resolver, resolver.document.root, value))
        if all(isinstance(v, ast.Constant) for v in value.values()):
            _no_program(resolver, "it holds parameters; give the program first")
    if isinstance(value, tuple) and value and all(isinstance(v, ast.Expr) for v in value):
        if len(value) == 1:
            return ast.Module(_as_main(value[0]))
        if not any(isinstance(v, ast.Function) for v in value):
            return ast.Module(_as_main(ast.Tuple(value)))
        _no_program(resolver, "of several functions none is the main one")
    _no_program(resolver, "nothing in it can be run")


def read_json(text: str | bytes, source: str = "<json>") -> ast.Module:
    """Read a program that was saved by ``tvm.ir.save_json``.

    A function becomes ``main``; of a bare expression ``main`` has the free variables as parameters,
    in the order of their use. Shared nodes are shared in the tree.

    Raises RelayError, with the node or with line and column, for what is damaged or no Relay.
    """
    document = read_document(decode(text, source) if isinstance(text, bytes) else text, source)
    resolver = Resolver(document, _kind_of)
    module = _program(resolver, resolver.resolve(document.root))
    module.source, module.version = source, document.version
    module.warnings += resolver.warnings
    return module


def read_table(
    text: str, source: str
) -> tuple[dict[str, tuple[Any, ...]], tuple[int, int] | None, list[str]]:
    """Read the JSON after ``#[metadata]``: the items by type key ("relay.Constant"), the version
    of TVM that wrote it, (0, 15), and warnings.

    Items are expressions, types, dimensions, attributes, plain Python values for numbers, strings,
    arrays and maps, and `ast.Opaque` for anything else. Raises RelayError, as `read_json` does.
    """
    document = read_document(text, source)
    resolver = Resolver(document, _kind_in_table)
    table = resolver.resolve(document.root)
    fits = isinstance(table, dict) and all(
        isinstance(key, str) and isinstance(items, tuple) for key, items in table.items()
    )
    if not fits:
        raise RelayError("the metadata is no map of lists", place=source)
    return table, document.version, resolver.warnings
