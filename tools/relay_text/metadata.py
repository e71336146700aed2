"""The metadata section, which a text refers to by ``meta[relay.Constant][0]``: TVM's JSON graph."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any

import torch

from meta.frontend.relay import ast
from meta.frontend.relay.errors import RelayError
from meta.frontend.relay.graph_json.document import BOOL, DOUBLE, DTYPE, INT, encoding
from meta.frontend.relay.params import BadRecord
from meta.frontend.relay.registry import attribute_types
from meta.frontend.relay.text.reader import CONSTANT, MODULE_ATTRIBUTES
from tools.relay_text.params import write_record

_VIRTUAL_DEVICE_NUMBERS = ("device_type_int", "virtual_device_id")
# What else may be in a key would end the reference, or begin a comment.
_KEY = re.compile(r"[\w.]{1,200}", re.ASCII)
_REFERENCE = re.compile(rf"meta\[({_KEY.pattern})\]\[([0-9]{{1,9}})\]", re.ASCII)


def cannot_write(value: object, why: str) -> RelayError:
    """Return the error of a tree that Relay text has no form for."""
    return RelayError(
        "this program cannot be written as Relay text", found=repr(value)[:200], expected=why
    )


class GraphWriter:
    """The nodes and arrays of one document. Node 0 is null."""

    def __init__(self) -> None:
        self._nodes: list[dict[str, Any]] = [{"type_key": ""}]
        self._arrays: list[str] = []
        self._written: dict[torch.Tensor, int] = {}

    def text(self, root: int, version: tuple[int, int] | None) -> str:
        """Return the document."""
        attrs = {} if version is None else {"tvm_version": f"{version[0]}.{version[1]}.0"}
        document = {
            "root": root,
            "nodes": self._nodes,
            "b64ndarrays": self._arrays,
            "attrs": attrs,
        }
        return json.dumps(document, indent=1)

    def map(self, entries: dict[str, int]) -> int:
        """Add a map from strings to nodes."""
        if not entries:
            return self._node("Map")
        return self._node("Map", keys=list(entries), data=list(entries.values()))

    def array(self, items: list[int]) -> int:
        """Add an array of nodes."""
        return self._node("Array", data=items) if items else self._node("Array")

    def value(self, value: Any) -> int:
        """Add a value and what it holds. Raises RelayError for what has no form in JSON."""
        match value:
            case None:
                return 0
            case str():
                return self._node("runtime.String", repr_str=value)
            case tuple() | list():
                return self.array([self.value(v) for v in value])
            case dict():
                if not all(isinstance(key, str) for key in value):
                    raise cannot_write(value, "maps from strings")
                return self.map({key: self.value(v) for key, v in value.items()})
            case ast.Op(name=name):
                return self._node("Op", repr_str=name)
            case ast.Attrs(type_key=str() as key) if key in attribute_types():
                return self._attributes(key, value.fields)
            case ast.Opaque():
                return self._opaque(value)
            case ast.DataType():
                return self._data_type(value)
        if type(value) not in _FORMS or (isinstance(value, ast.Constant) and value.value is None):
            raise cannot_write(value, "a value that TVM's JSON has a form for")
        type_key, fields = _FORMS[type(value)](self, value)
        return self._node(type_key, {**{k: str(v) for k, v in fields.items()}, "span": "0"})

    def tensor(self, tensor: torch.Tensor) -> int:
        """Add an array, once if several constants hold it; return its number."""
        if tensor not in self._written:
            try:
                record = write_record(tensor)
            except BadRecord as error:
                raise cannot_write(tensor.dtype, str(error)) from None
            self._written[tensor] = len(self._arrays)
            self._arrays.append(base64.b64encode(record).decode("ascii"))
        return self._written[tensor]

    def _attributes(self, key: str, fields: dict[str, Any]) -> int:
        known = attribute_types()[key]
        if not fields.keys() <= known.keys():
            raise cannot_write(sorted(fields.keys() - known.keys()), f"fields of {key}")
        written = {
            name: self._field(encoding(known[name].type), value) for name, value in fields.items()
        }
        return self._node(key, written)

    def _field(self, how: str, value: Any) -> str:
        if how in (INT, BOOL):
            return str(int(value))
        if how == DOUBLE:
            return repr(float(value))
        return str(value) if how == DTYPE else str(self.value(value))

    def _opaque(self, value: ast.Opaque) -> int:
        fields = dict(value.fields)
        text = fields.pop("text", None)
        written = {name: self._opaque_field(value.type_key, name, v) for name, v in fields.items()}
        other = {} if text is None else {"repr_str": text}
        return self._node(value.type_key, written or None, **other)

    def _opaque_field(self, type_key: str, name: str, value: Any) -> str:
        if type_key == "VirtualDevice" and name not in _VIRTUAL_DEVICE_NUMBERS:
            return str(self.value(value))
        if not isinstance(value, str | int):
            raise cannot_write(value, f"the text of the field {name!r} of {type_key}")
        return str(value)

    def _data_type(self, value: ast.DataType) -> int:
        name = str(self.value(value.name))
        head = self._node("GlobalTypeVar", {"kind": "5", "name_hint": name})
        if not value.args:
            return head
        args = str(self.value(value.args))
        return self._node("TypeCall", {"args": args, "func": str(head), "span": "0"})

    def _node(self, type_key: str, attrs: dict[str, str] | None = None, **other: Any) -> int:
        node: dict[str, Any] = {"type_key": type_key}
        if attrs is not None:
            node["attrs"] = attrs
        self._nodes.append({**node, **other})
        return len(self._nodes) - 1


_FORMS: dict[type, Callable[[GraphWriter, Any], tuple[str, dict[str, Any]]]] = {
    bool: lambda w, x: ("IntImm", {"dtype": "bool", "value": int(x)}),
    int: lambda w, x: (
        "IntImm",
        {"dtype": "int32" if -(2**31) <= x < 2**31 else "int64", "value": x},
    ),
    float: lambda w, x: ("FloatImm", {"dtype": "float64", "value": repr(x)}),
    ast.Constant: lambda w, x: (
        "relay.Constant",
        {"_checked_type_": 0, "data": w.tensor(x.value), "virtual_device_": 0},
    ),
    ast.GlobalVar: lambda w, x: ("GlobalVar", {"name_hint": w.value(x.name)}),
    ast.AnyDim: lambda w, x: ("tir.Any", {"dtype": "int32"}),
    ast.SymbolDim: lambda w, x: (
        "tir.Var",
        {"dtype": "int32", "name": w.value(x.name), "type_annotation": 0},
    ),
    ast.TensorType: lambda w, x: (
        "relay.TensorType",
        {"dtype": x.dtype, "shape": w.value(x.shape)},
    ),
    ast.TupleType: lambda w, x: ("TupleType", {"fields": w.value(x.fields)}),
    ast.RefType: lambda w, x: ("relay.RefType", {"value": w.value(x.value)}),
    ast.FuncType: lambda w, x: (
        "FuncType",
        {
            "arg_types": w.value(x.params),
            "ret_type": w.value(x.result),
            "type_constraints": w.array([]),
            "type_params": w.value([ast.TypeVar(name) for name in x.type_params]),
        },
    ),
    ast.TypeVar: lambda w, x: ("TypeVar", {"kind": 0, "name_hint": w.value(x.name)}),
    ast.UnknownType: lambda w, x: ("IncompleteType", {"kind": 0}),
}
"""The nodes of values: type key and fields, which are numbers of other nodes, or texts."""


class MetadataWriter:
    """The items of the section, by type key.

    References that were read without an item keep their numbers: no item gets them.
    """

    def __init__(self) -> None:
        self._graph = GraphWriter()
        self._items: dict[str, dict[int, int]] = {}
        self._next: dict[str, int] = {}
        self._reserved: set[tuple[str, int]] = set()
        self._known: dict[Any, str] = {}

    def reserve(self, text: str | None) -> None:
        """Keep the number of a reference that has no item."""
        match = _REFERENCE.fullmatch(text or "")
        if match is not None:
            self._reserved.add((match[1], int(match[2])))

    def missing(self, text: str | None) -> str:
        """Return the reference to what the program does not hold."""
        if text is not None and _REFERENCE.fullmatch(text):
            return text
        return f"meta[{CONSTANT}][{self._free(CONSTANT)}]"

    def constant(self, constant: ast.Constant) -> str:
        """Return the reference to a constant."""
        if constant.value is None:
            return self.missing(constant.missing)
        return self._reference(constant, CONSTANT)

    def dim(self, dim: ast.SymbolDim) -> str:
        """Return the reference to a symbolic dimension."""
        return dim.name if _REFERENCE.fullmatch(dim.name) else self._reference(dim, "tir.Var")

    def value(self, value: Any) -> str:
        """Return the reference to the value of an attribute."""
        if isinstance(value, ast.Opaque):
            stated = dict(value.fields).get("missing")
            if isinstance(stated, str) and _REFERENCE.fullmatch(stated):
                return stated
        return self._add(value, _type_key(value))

    def _reference(self, value: Any, type_key: str) -> str:
        if value not in self._known:
            self._known[value] = self._add(value, type_key)
        return self._known[value]

    def _add(self, value: Any, type_key: str) -> str:
        index = self._free(type_key)
        self._items.setdefault(type_key, {})[index] = self._graph.value(value)
        return f"meta[{type_key}][{index}]"

    def _free(self, type_key: str) -> int:
        index = self._next.get(type_key, 0)
        while (type_key, index) in self._reserved:
            index += 1
        self._next[type_key] = index + 1
        return index

    def section(self, module: ast.Module) -> str:
        """Return the section with what stands before it, empty if nothing is to be said there."""
        if module.attrs:
            self._add(module.attrs, MODULE_ATTRIBUTES)
        if not self._items and module.version is None:
            return ""
        arrays = {
            key: self._graph.array([items.get(i, 0) for i in range(max(items) + 1)])
            for key, items in self._items.items()
        }
        root = self._graph.map(arrays)
        return f"\n#[metadata]\n{self._graph.text(root, module.version)}\n"


def _type_key(value: Any) -> str:
    match value:
        case ast.Attrs(type_key=str() as key):
            return key
        case ast.Opaque(type_key=key):
            return key if _KEY.fullmatch(key) else "Object"
        case ast.Constant():
            return CONSTANT
        case ast.AnyDim():
            return "tir.Any"
        case ast.SymbolDim():
            return "tir.Var"
        case dict():
            return "Map"
    return type(value).__name__
