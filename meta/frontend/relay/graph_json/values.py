"""Nodes that are plain data: numbers, strings, arrays, maps, attributes of operators.

An attribute type of an operator needs no entry here: `operators.json` has them.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

from meta.frontend.relay import ast
from meta.frontend.relay.graph_json.document import (
    BOOL,
    DOUBLE,
    DTYPE,
    FIRST_STABLE_VERSION,
    INT,
    OBJECT,
    STRING,
    encoding,
    field_type,
    length_prefixed,
    scalar,
)
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

KINDS: dict[str, Kind] = {
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
