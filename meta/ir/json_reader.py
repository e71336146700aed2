"""Reads the JSON of `json_writer.py`. Nothing in it is trusted.

Every object is checked for its keys, every number for its range, every payload for its length, and
nesting is limited. An error names the place: ``functions["main"].body.bindings[3].value.args[0]``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

import torch

from meta.base.dtype import FROM_TORCH
from meta.base.errors import FormatError, IRError, UnknownName
from meta.base.registry import nearest
from meta.base.source import Span
from meta.ir.constants import from_base64
from meta.ir.expr import (
    Binding,
    Block,
    Call,
    Constant,
    Construct,
    ConstructorDefinition,
    Expr,
    Fail,
    Function,
    GetField,
    GlobalVar,
    If,
    IsVariant,
    Literal,
    MakeRef,
    Module,
    Op,
    ReadRef,
    Tuple,
    TupleGetItem,
    TypeDefinition,
    Var,
    WriteRef,
)
from meta.ir.json_writer import SCHEMA, VERSION
from meta.ir.literals import MAX_NESTING
from meta.ir.operators import resolve_op
from meta.ir.parser import parse_dim, parse_type
from meta.ir.type_parser import MAX_DIGITS
from meta.ir.types import DataType, SymbolicDim, TensorType, Type


class JsonValues:
    """Every method gets a value and the path to it, which an error names."""

    def fail(self, path: str, what: str, *, expected: object = None, **details: Any) -> NoReturn:
        raise FormatError(f"{path or 'the document'}: {what}", expected=expected, **details)

    def object(
        self, value: Any, path: str, keys: tuple[str, ...], optional: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """Return an object that has these keys and no others."""
        found: dict[str, Any] = self.checked(value, path, dict, "an object")
        for key in keys:
            if key not in found:
                self.fail(path, f"the key {key!r} is missing")
        for key in found:
            if key not in keys and key not in optional:
                self.fail(path, f"unknown key {key!r}", hint=nearest(key, (*keys, *optional)))
        return found

    def checked(self, value: Any, path: str, kind: type, what: str) -> Any:
        # True is an int in Python and none in JSON.
        if type(value) is not kind:
            self.fail(path, f"a {type(value).__name__} is found", expected=what)
        return value

    def array(self, value: Any, path: str) -> list[Any]:
        return self.checked(value, path, list, "an array")  # type: ignore[no-any-return]

    def string(self, value: Any, path: str) -> str:
        return self.checked(value, path, str, "a string")  # type: ignore[no-any-return]

    def integer(self, value: Any, path: str, below: int | None = None) -> int:
        """Return an integer that is not negative, and less than ``below``."""
        number: int = self.checked(value, path, int, "an integer")
        if number < 0 or (below is not None and number >= below):
            limit = "" if below is None else f", below {below}"
            self.fail(path, f"{number} is out of range", expected=f"at least 0{limit}")
        return number


_ATOMS = ("var", "constant", "global", "op", "tuple")
_DATA_VALUES = {
    "construct": ("type", "fields"),
    "is_variant": ("of",),
    "get_field": ("index", "of", "type"),
    "make_ref": (),
    "read_ref": (),
    "write_ref": ("value",),
    "fail": ("type",),
}
"""By the key that tells a value about data and references: its other keys."""
_NOT_FINITE = ("nan", "inf", "-inf")
_MAX_LINE = 10**9
"""As many lines as program text can say."""


def from_json(text: str, constants: Mapping[str, torch.Tensor] | None = None) -> Module:
    """Return the module that `to_json` wrote.

    ``constants``: the tensors that the JSON refers to by name. Raises FormatError, naming the
    place, for anything that is not of this form, for unknown operators, functions and tensors, and
    for variables out of their scope. What the form cannot see is left to `verify`.
    """
    try:
        document = json.loads(
            text,
            object_pairs_hook=_without_repeated_keys,
            parse_constant=_refuse_constant,
            parse_int=_read_int,
        )
    except FormatError:
        raise
    except (ValueError, RecursionError) as error:
        raise FormatError(f"this is no JSON: {error}") from None
    return _Reader(constants or {}).module(document)


def _without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise FormatError(f"an object has the key {twice!r} twice")
    return found


def _refuse_constant(text: str) -> NoReturn:
    raise FormatError(f"{text} is no JSON", hint='write {"float": "nan"}')


def _read_int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise FormatError(f"a number has more than {MAX_DIGITS} digits")
    return int(text)


class _Reader(JsonValues):
    """Reads one document. Every method gets a value and the path to it."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.tensors = tensors
        self.constants: list[Constant] = []
        self.globals: dict[str, GlobalVar] = {}
        self.functions: Mapping[str, Any] = {}
        self.ops: dict[str, Op] = {}
        self.types: dict[str, Type] = {}
        self.numbers: set[int] = set()
        self.scope: dict[int, Var] = {}

    def module(self, document: Any) -> Module:
        keys = ("schema", "version", "types", "functions", "constants")
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            self.fail("", "this is no program", expected=f'an object with "schema": "{SCHEMA}"')
        root = self.object(document, "", keys)
        if self.integer(root["version"], "version") != VERSION:
            self.fail("version", f"version {root['version']} is not known", expected=VERSION)
        entries = self.array(root["constants"], "constants")
        self.constants = [self.constant(e, f"constants[{i}]") for i, e in enumerate(entries)]
        definitions = self.checked(root["types"], "types", dict, "an object")
        types = {
            name: self.definition(name, entry, f"types[{json.dumps(name)}]")
            for name, entry in definitions.items()
        }
        self.functions = self.checked(root["functions"], "functions", dict, "an object")
        functions = {}
        for name, entry in self.functions.items():
            self.scope.clear()
            self.numbers.clear()
            functions[name] = self.function(entry, f"functions[{json.dumps(name)}]", 0)
        for name, var in self.globals.items():
            var.type = functions[name].type
        return Module(functions, types)

    def definition(self, name: str, value: Any, path: str) -> TypeDefinition:
        constructors: dict[str, ConstructorDefinition] = {}
        for i, item in enumerate(self.array(value, path)):
            at = f"{path}[{i}]"
            entry = self.object(item, at, ("name", "fields"))
            constructor = self.string(entry["name"], f"{at}.name")
            if constructor in constructors:
                self.fail(f"{at}.name", f"a second constructor {constructor!r}")
            types = enumerate(self.array(entry["fields"], f"{at}.fields"))
            fields = tuple(self.type(t, f"{at}.fields[{j}]") for j, t in types)
            constructors[constructor] = ConstructorDefinition(constructor, fields)
        return TypeDefinition(name, tuple(constructors.values()))

    def constant(self, value: Any, path: str) -> Constant:
        external = isinstance(value, dict) and "tensor" in value
        entry = self.object(value, path, ("type", "tensor" if external else "base64"))
        type_ = self.type(entry["type"], f"{path}.type")
        if not isinstance(type_, TensorType) or not type_.is_static:
            self.fail(f"{path}.type", f"{type_} is not the type of a constant")
        if external:
            name = self.string(entry["tensor"], f"{path}.tensor")
            if name not in self.tensors:
                hint = nearest(name, self.tensors)
                self.fail(f"{path}.tensor", f"there is no tensor {name!r}", hint=hint)
            tensor = self.tensors[name]
            dtype, shape = FROM_TORCH.get(tensor.dtype), tuple(tensor.shape)
            if dtype != type_.dtype or shape != type_.shape:
                found = f"{tensor.dtype}{list(shape)}"
                self.fail(path, f"the tensor {name!r} is {found}", expected=type_)
            return Constant(tensor)
        text = self.string(entry["base64"], f"{path}.base64")
        try:
            return Constant(from_base64(text, type_.static_shape, type_.dtype))
        except ValueError as error:
            self.fail(f"{path}.base64", str(error), expected=f"the bytes of a {type_}")

    def type(self, value: Any, path: str) -> Type:
        text = self.string(value, path)
        if text not in self.types:
            try:
                self.types[text] = parse_type(text)
            except IRError as error:
                self.fail(path, f"{text[:80]!r} is no type", expected=error.expected)
        return self.types[text]

    def function(self, value: Any, path: str, depth: int) -> Function:
        entry = self.object(value, path, ("params", "result_type", "attrs", "body"))
        outer = len(self.scope)
        params = self.array(entry["params"], f"{path}.params")
        new = tuple(self.binder(p, f"{path}.params[{i}]") for i, p in enumerate(params))
        result = entry["result_type"]
        result_type = None if result is None else self.type(result, f"{path}.result_type")
        attrs = {
            key: self.literal(attr, f"{path}.attrs[{json.dumps(key)}]")
            for key, attr in self.checked(
                entry["attrs"], f"{path}.attrs", dict, "an object"
            ).items()
        }
        body = self.block(entry["body"], f"{path}.body", depth)
        self.leave(outer)
        return Function(new, body, result_type, attrs)

    def binder(self, value: Any, path: str) -> Var:
        """Read a parameter."""
        return self.bind(self.object(value, path, ("var", "name", "type")), path)

    def bind(self, entry: dict[str, Any], path: str) -> Var:
        number = self.integer(entry["var"], f"{path}.var")
        if number in self.numbers:
            self.fail(f"{path}.var", f"the variable {number} is bound twice")
        type_ = entry["type"]
        read = None if type_ is None else self.type(type_, f"{path}.type")
        var = self.scope[number] = Var(self.string(entry["name"], f"{path}.name"), read)
        self.numbers.add(number)
        return var

    def leave(self, size: int) -> None:
        """Shrink the scope to the variables that it had."""
        while len(self.scope) > size:
            self.scope.popitem()

    def block(self, value: Any, path: str, depth: int) -> Block:
        if depth > MAX_NESTING:
            self.fail(path, f"blocks are nested more than {MAX_NESTING} deep")
        entry, outer = self.object(value, path, ("bindings", "result")), len(self.scope)
        items = self.array(entry["bindings"], f"{path}.bindings")
        bindings = [self.binding(b, f"{path}.bindings[{i}]", depth) for i, b in enumerate(items)]
        result = self.atom(entry["result"], f"{path}.result")
        self.leave(outer)
        return Block(tuple(bindings), result)

    def binding(self, value: Any, path: str, depth: int) -> Binding:
        entry = self.object(value, path, ("var", "name", "type", "value"), ("span",))
        # The value comes first: it cannot refer to its own variable.
        bound = self.value(entry["value"], f"{path}.value", depth)
        span = self.span(entry["span"], f"{path}.span") if "span" in entry else None
        return Binding(self.bind(entry, path), bound, span)

    def span(self, value: Any, path: str) -> Span:
        items = self.array(value, path)
        if len(items) != 2:
            self.fail(path, f"{len(items)} items are found", expected="[file, line]")
        return Span(self.string(items[0], path), self.integer(items[1], path, _MAX_LINE))

    def value(self, value: Any, path: str, depth: int) -> Expr:
        """Read what can be bound."""
        match value:
            case {"call": callee}:
                entry = self.object(value, path, ("call", "args"))
                args = self.array(entry["args"], f"{path}.args")
                return Call(
                    self.atom(callee, f"{path}.call"),
                    tuple(self.argument(a, f"{path}.args[{i}]") for i, a in enumerate(args)),
                )
            case {"field": index}:
                owner = self.object(value, path, ("field", "of"))["of"]
                return TupleGetItem(
                    self.atom(owner, f"{path}.of"), self.integer(index, f"{path}.field")
                )
            case {"if": condition}:
                entry = self.object(value, path, ("if", "then", "else"))
                return If(
                    self.atom(condition, f"{path}.if"),
                    self.block(entry["then"], f"{path}.then", depth + 1),
                    self.block(entry["else"], f"{path}.else", depth + 1),
                )
            case {"function": function}:
                self.object(value, path, ("function",))
                return self.function(function, f"{path}.function", depth + 1)
            case dict() if not value.keys().isdisjoint(_DATA_VALUES):
                return self.data_value(value, path)
            case _:
                return self.atom(value, path)

    def data_value(self, value: dict[str, Any], path: str) -> Expr:
        """Read what is about a data value or a reference."""
        kind = next(k for k in _DATA_VALUES if k in value)
        entry = self.object(value, path, (kind, *_DATA_VALUES[kind]))

        def atom(key: str) -> Expr:
            return self.atom(entry[key], f"{path}.{key}")

        def string(key: str) -> str:
            return self.string(entry[key], f"{path}.{key}")

        match kind:
            case "construct":
                fields = enumerate(self.array(entry["fields"], f"{path}.fields"))
                atoms = tuple(self.atom(f, f"{path}.fields[{i}]") for i, f in fields)
                return Construct(DataType(string("type")), string(kind), atoms)
            case "is_variant":
                return IsVariant(atom("of"), string(kind))
            case "get_field":
                index = self.integer(entry["index"], f"{path}.index")
                type_ = self.type(entry["type"], f"{path}.type")
                return GetField(atom("of"), string(kind), index, type_)
            case "make_ref":
                return MakeRef(atom(kind))
            case "read_ref":
                return ReadRef(atom(kind))
            case "write_ref":
                return WriteRef(atom(kind), atom("value"))
            case _:
                return Fail(string(kind), self.type(entry["type"], f"{path}.type"))

    def argument(self, value: Any, path: str) -> Expr | Literal:
        if isinstance(value, dict) and not value.keys() & {"float", "dim"}:
            return self.atom(value, path)
        return self.literal(value, path)

    def literal(self, value: Any, path: str, depth: int = 0) -> Literal:
        if isinstance(value, dict) and "dim" in value:
            return self.dim(self.object(value, path, ("dim",))["dim"], f"{path}.dim")
        if isinstance(value, dict):
            number = self.object(value, path, ("float",))["float"]
            if not isinstance(number, str) or number not in _NOT_FINITE:
                self.fail(path, "no such number", expected="nan, inf or -inf")
            return float(number)
        if isinstance(value, list):
            if depth >= MAX_NESTING:
                self.fail(path, f"tuples are nested more than {MAX_NESTING} deep")
            return tuple(self.literal(v, f"{path}[{i}]", depth + 1) for i, v in enumerate(value))
        return value

    def dim(self, value: Any, path: str) -> SymbolicDim:
        text = self.string(value, path)
        try:
            found = parse_dim(text)
        except IRError as error:
            self.fail(path, f"{text[:80]!r} is no dimension", expected=error.expected)
        if not isinstance(found, SymbolicDim):
            self.fail(path, "a number is no symbolic dimension", expected="a plain number")
        return found

    def atom(self, value: Any, path: str, depth: int = 0) -> Expr:
        if not isinstance(value, dict) or len(value) != 1:
            expected = "an atom: an object with one key, var, constant, global, op or tuple"
            self.fail(path, f"a {type(value).__name__} is found", expected=expected)
        [(kind, what)] = value.items()
        path = f"{path}.{kind}"
        match kind:
            case "var":
                number = self.integer(what, path)
                if number not in self.scope:
                    self.fail(path, f"the variable {number} is not in scope")
                return self.scope[number]
            case "constant":
                return self.constants[self.integer(what, path, len(self.constants))]
            case "global":
                return self.global_var(self.string(what, path), path)
            case "op":
                return self.op(self.string(what, path), path)
            case "tuple":
                if depth >= MAX_NESTING:
                    self.fail(path, f"tuples are nested more than {MAX_NESTING} deep")
                fields = enumerate(self.array(what, path))
                return Tuple(tuple(self.atom(f, f"{path}[{i}]", depth + 1) for i, f in fields))
            case _:
                self.fail(path, "this is no kind of atom", hint=nearest(kind, _ATOMS))

    def global_var(self, name: str, path: str) -> GlobalVar:
        if name not in self.functions:
            self.fail(path, f"there is no function {name!r}", hint=nearest(name, self.functions))
        return self.globals.setdefault(name, GlobalVar(name))

    def op(self, name: str, path: str) -> Op:
        if name not in self.ops:
            try:
                self.ops[name] = resolve_op(name)
            except UnknownName as error:
                self.fail(path, error.what, hint=error.hint)
        return self.ops[name]
