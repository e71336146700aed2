"""Nodes that are plain data (numbers, strings, arrays, maps, attributes of operators), and the root
of a JSON graph: a module, or what is taken for one.

An attribute type of an operator needs no entry here: `operators.json` has them.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any, NoReturn

from meta.frontend.relay import ast
from meta.frontend.relay.ast import free_variables
from meta.frontend.relay.errors import RelayError
from meta.frontend.relay.graph_json import nodes
from meta.frontend.relay.graph_json.document import (
    BOOL,
    DOUBLE,
    DTYPE,
    FIRST_STABLE_VERSION,
    INT,
    OBJECT,
    STRING,
    decode,
    encoding,
    field_type,
    length_prefixed,
    read_document,
    scalar,
    type_key,
)
from meta.frontend.relay.graph_json.nodes import type_names
from meta.frontend.relay.graph_json.resolve import STRING_KEYS, Kind, Resolver
from meta.frontend.relay.registry import attribute_types

Fields = dict[str, Any]


def _array(resolver: Resolver, index: int, _: Fields) -> tuple[Any, ...]:
    return tuple(resolver.values[i] for i in resolver.document.nodes[index].data)


def _map(resolver: Resolver, index: int, _: Fields) -> dict[Any, Any]:
    """A dict; its keys are strings, or global variables and the like, which compare by identity."""
    node, values = resolver.document.nodes[index], resolver.values
    if node.keys is not None:
        if len(node.keys) != len(node.data):
            resolver.fail(index, f"a map of {len(node.keys)} keys and {len(node.data)} values")
        pairs = list(zip(node.keys, (values[i] for i in node.data), strict=True))
    else:
        if len(node.data) % 2:
            resolver.fail(index, "a map with a key that has no value")
        pairs = [
            (values[k], values[v]) for k, v in zip(node.data[::2], node.data[1::2], strict=True)
        ]
    result: dict[Any, Any] = {}
    for key, value in pairs:
        if not isinstance(key, str | int | ast.GlobalVar | ast.DataType):
            resolver.fail(index, f"a map's key is a {type(key).__name__}")
        if key in result:
            resolver.fail(index, f"the key {str(key)[:60]!r} occurs twice in a map")
        result[key] = value
    return result


def _immediate(resolver: Resolver, index: int, fields: Fields) -> Any:
    value = fields["value"]
    if value is None:
        resolver.fail(index, "a number without a value")
    return bool(value) if fields["dtype"] in ("bool", "uint1") else value


def _boxed(resolver: Resolver, index: int, _: Fields) -> Any:
    """A number as an object, which is written as text (since v0.18)."""
    text, encoding = resolver.text(index), _BOXES[resolver.document.nodes[index].type_key]
    if encoding is BOOL:
        text = {"true": "1", "false": "0"}.get(text, text)
    return scalar(encoding, text)


def _shape_tuple(resolver: Resolver, index: int, _: Fields) -> tuple[int, ...]:
    text = resolver.document.nodes[index].text or ""
    data = length_prefixed(text, "a shape", width=8)
    return struct.unpack(f"<{len(data) // 8}q", data)


def _dict_attrs(resolver: Resolver, index: int, fields: Fields) -> dict[str, Any]:
    entries = resolver.expect(index, fields["__dict__"], dict, "its map", {})
    if not all(isinstance(key, str) for key in entries):
        resolver.fail(index, "an attribute's name is no string")
    return entries


def _opaque(resolver: Resolver, index: int, fields: Fields) -> ast.Opaque:
    """An object by its type key and fields."""
    node = resolver.document.nodes[index]
    # What is not listed as a field may be a reference: only strings are followed.
    stated = [
        (name, fields[name] if name in fields else resolver.string(text))
        for name, text in sorted(node.attrs.items())
    ]
    if node.text is not None:
        stated.append(("text", resolver.text(index)))
    return ast.Opaque(node.type_key, tuple(stated))


def _attributes(resolver: Resolver, index: int, fields: Fields) -> ast.Attrs:
    """Attributes as far as the node states them: the table has the defaults of the others."""
    node = resolver.document.nodes[index]
    stated = {name: value for name, value in fields.items() if name in node.attrs}
    return ast.Attrs(stated, node.type_key)


@cache
def _attributes_kind(key: str, version: tuple[int, int] | None) -> Kind:
    types = {
        name: field_type(key, name, version, f.type) for name, f in attribute_types()[key].items()
    }
    fields = {name: encoding(type_) for name, type_ in types.items()}
    return Kind(_attributes, fields, open=True)


def attributes_kind(key: str, version: tuple[int, int] | None) -> Kind | None:
    """Return how an operator's attributes are read, None if the table has no such type."""
    if key == "DictAttrs" or key not in attribute_types():
        return None
    return _attributes_kind(
        key, version if version is not None and version < FIRST_STABLE_VERSION else None
    )


# Objects of the compiler, which say nothing about what a program computes.
_OPAQUE = (
    "Target TargetKind EnvFunc Executor Runtime relay.Executor relay.Runtime tir.IndexMap "
    "WorkspaceMemoryPools ConstantMemoryPools WorkspacePoolInfo ConstantPoolInfo"
)
OPAQUE = Kind(_opaque)
"""An object that is kept by its type key and fields, without a meaning."""

_TEXT = {"value": STRING}
_DEVICE = {"device_type_int": INT, "virtual_device_id": INT, "target": OBJECT}
_BOXES = {"runtime.BoxInt": INT, "runtime.BoxFloat": DOUBLE, "runtime.BoxBool": BOOL}

DATA_KINDS: dict[str, Kind] = {
    "Array": Kind(_array, items=True),
    "Map": Kind(_map, items=True),
    "IntImm": Kind(_immediate, {"dtype": DTYPE, "value": INT}),
    "FloatImm": Kind(_immediate, {"dtype": DTYPE, "value": DOUBLE}),
    "tir.StringImm": Kind(lambda r, i, f: r.expect(i, f["value"], str, "its value"), _TEXT),
    "runtime.NDArray": Kind(lambda r, i, _: r.constant(i, r.decode_array(i, r.text(i)))),
    "runtime.ShapeTuple": Kind(_shape_tuple),
    "DictAttrs": Kind(_dict_attrs, {"__dict__": OBJECT}),
    # A device, under its present name.
    "VirtualDevice": Kind(
        lambda r, i, f: ast.Opaque("VirtualDevice", _opaque(r, i, f).fields),
        {**_DEVICE, "memory_scope": STRING},
    ),
    **{key: Kind(lambda r, i, _: r.text(i)) for key in STRING_KEYS},
    **{key: Kind(_boxed) for key in _BOXES},
    **dict.fromkeys(_OPAQUE.split(), OPAQUE),
}


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
    **DATA_KINDS,
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
    return _KINDS.get(key) or attributes_kind(key, resolver.document.version)


def _kind_in_table(resolver: Resolver, index: int) -> Kind:
    """Return how a node of a metadata section is read: what is not known as an `Opaque`."""
    key = type_key(resolver.document.nodes[index].type_key)
    return _known_kind(resolver, key) or (OPAQUE if key else _kind_of(resolver, index))


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
