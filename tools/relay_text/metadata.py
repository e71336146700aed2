"""The metadata section, which a text refers to by ``meta[relay.Constant][0]``: TVM's JSON graph."""

from __future__ import annotations

import base64
import json
import re
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
        if value is None:
            return 0
        if isinstance(value, bool):
            return self._node("IntImm", {"dtype": "bool", "span": "0", "value": str(int(value))})
        if isinstance(value, int):
            return self._integer(value)
        if isinstance(value, float):
            fields = {"dtype": "float64", "span": "0", "value": repr(value)}
            return self._node("FloatImm", fields)
        if isinstance(value, str):
            return self._node("runtime.String", repr_str=value)
        if isinstance(value, tuple | list):
            return self.array([self.value(v) for v in value])
        if isinstance(value, dict):
            if not all(isinstance(key, str) for key in value):
                raise cannot_write(value, "maps from strings")
            return self.map({key: self.value(v) for key, v in value.items()})
        if isinstance(value, ast.Type):
            return self._type(value)
        return self._object(value)

    def _object(self, value: Any) -> int:
        match value:
            case ast.Constant(value=torch.Tensor() as tensor):
                data = str(self._tensor(tensor))
                fields = {"_checked_type_": "0", "data": data, "span": "0", "virtual_device_": "0"}
                return self._node("relay.Constant", fields)
            case ast.AnyDim():
                return self._node("tir.Any", {"dtype": "int32", "span": "0"})
            case ast.SymbolDim(name=name):
                named = {"dtype": "int32", "name": str(self.value(name)), "span": "0"}
                return self._node("tir.Var", {**named, "type_annotation": "0"})
            case ast.GlobalVar(name=name):
                return self._node("GlobalVar", {"name_hint": str(self.value(name)), "span": "0"})
            case ast.Op(name=name):
                return self._node("Op", repr_str=name)
            case ast.Attrs(type_key=str() as key) if key in attribute_types():
                return self._attributes(key, value.fields)
            case ast.Opaque():
                return self._opaque(value)
        raise cannot_write(value, "a value that TVM's JSON has a form for")

    def _integer(self, value: int) -> int:
        dtype = "int32" if -(2**31) <= value < 2**31 else "int64"
        return self._node("IntImm", {"dtype": dtype, "span": "0", "value": str(value)})

    def _tensor(self, tensor: torch.Tensor) -> int:
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

    def _type(self, value: ast.Type) -> int:
        match value:
            case ast.TensorType(shape=shape, dtype=dtype):
                fields = {"dtype": dtype, "shape": str(self.value(shape)), "span": "0"}
                return self._node("relay.TensorType", fields)
            case ast.TupleType(fields=parts):
                return self._node("TupleType", {"fields": str(self.value(parts)), "span": "0"})
            case ast.RefType(value=inner):
                return self._node("relay.RefType", {"value": str(self._type(inner)), "span": "0"})
            case ast.FuncType(params=params, result=result, type_params=names):
                variables = [self._type(ast.TypeVar(name)) for name in names]
                fields = {
                    "arg_types": str(self.value(params)),
                    "ret_type": str(self._type(result)),
                    "span": "0",
                    "type_constraints": str(self.array([])),
                    "type_params": str(self.array(variables)),
                }
                return self._node("FuncType", fields)
            case ast.TypeVar(name=name):
                fields = {"kind": "0", "name_hint": str(self.value(name)), "span": "0"}
                return self._node("TypeVar", fields)
            case ast.DataType(name=name, args=args):
                head = self._node(
                    "GlobalTypeVar", {"kind": "5", "name_hint": str(self.value(name))}
                )
                if not args:
                    return head
                fields = {"args": str(self.value(args)), "func": str(head), "span": "0"}
                return self._node("TypeCall", fields)
        return self._node("IncompleteType", {"kind": "0", "span": "0"})

    def _node(self, type_key: str, attrs: dict[str, str] | None = None, **other: Any) -> int:
        node: dict[str, Any] = {"type_key": type_key}
        if attrs is not None:
            node["attrs"] = attrs
        self._nodes.append({**node, **other})
        return len(self._nodes) - 1


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
