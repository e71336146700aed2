"""Programs as JSON that `json_reader.py` reads back, to the last bit::

    {"schema": "meta.ir", "version": 2,
     "types": {"List": [{"name": "Cons", "fields": ["float32[]", "type List"]}, ...], ...},
     "functions": {"main": FUNCTION, ...},
     "constants": [{"type": "float32[2]", "base64": "AACAPwAAAEA="},
                   {"type": "float32[64, 3]", "tensor": "constant.1"}, ...]}

    FUNCTION  {"params": [BINDER, ...], "result_type": "float32[2]" or null, "attrs": {...},
               "body": BLOCK}
    BINDER    {"var": 0, "name": "x", "type": "float32[2]" or null}
    BLOCK     {"bindings": [BINDER and {"value": VALUE, "span": ["/home/me/lenet.py", 12]}, ...],
               "result": ATOM}
    VALUE     ATOM, {"call": ATOM, "args": [ATOM or LITERAL, ...]}, {"field": 1, "of": ATOM},
              {"if": ATOM, "then": BLOCK, "else": BLOCK}, {"function": FUNCTION},
              {"construct": "Cons", "type": "List", "fields": [ATOM, ...]},
              {"is_variant": "Cons", "of": ATOM},
              {"get_field": "Cons", "index": 0, "of": ATOM, "type": "float32[]"},
              {"make_ref": ATOM}, {"read_ref": ATOM}, {"write_ref": ATOM, "value": ATOM},
              {"fail": "no case fits", "type": "float32[]"}
    ATOM      {"var": 0}, {"constant": 0}, {"global": "main"}, {"op": "relu"},
              {"tuple": [ATOM, ...]}
    LITERAL   null, true, 1, 1.5, "text", [LITERAL, ...], {"float": "nan"} (or inf, -inf),
              {"dim": "2*n"}

Variables are numbered within their function, nested blocks included; types are as in program text.
A change of this form gets a new `VERSION`.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

import torch

from meta.base.dtype import FROM_TORCH
from meta.base.errors import IRError
from meta.ir.constants import to_base64
from meta.ir.dims import SymbolicDim
from meta.ir.expr import (
    Binding,
    Block,
    Call,
    Constant,
    Construct,
    Expr,
    Fail,
    Function,
    GetField,
    GlobalVar,
    If,
    IsVariant,
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
from meta.ir.literals import MAX_NESTING, is_literal

SCHEMA = "meta.ir"
VERSION = 2


def to_json(module: Module, constants: dict[str, torch.Tensor] | None = None) -> str:
    """Return a module as JSON.

    Constants are written with their bytes, or with ``constants`` put there, under names that are
    new in it, and referred to: a folder may keep them as safetensors. Raises IRError for what
    `verify` refuses and JSON cannot say.
    """
    writer = _Writer(constants)
    functions = {name: writer.top_level(f) for name, f in module.functions.items()}
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        "types": {name: _definition(d) for name, d in module.types.items()},
        "functions": functions,
        "constants": writer.constants,
    }
    return json.dumps(document, allow_nan=False)


class _Writer:
    def __init__(self, external: dict[str, torch.Tensor] | None) -> None:
        self.external = external
        self.constants: list[dict[str, str]] = []
        self.constant_numbers: dict[Constant, int] = {}
        self.var_numbers: dict[Var, int] = {}

    def fail(self, what: str, **details: Any) -> NoReturn:
        raise IRError(f"this program cannot be written: {what}", **details)

    def top_level(self, function: Function) -> dict[str, Any]:
        self.var_numbers = {}
        return self.function(function, 0)

    def function(self, function: Function, depth: int) -> dict[str, Any]:
        for key, value in function.attrs.items():
            if not isinstance(key, str) or not is_literal(value):
                self.fail(f"the attribute {key!r} is not a literal")
        return {
            "params": [self.binder(p) for p in function.params],
            "result_type": None if function.result_type is None else str(function.result_type),
            "attrs": {key: _literal(value) for key, value in function.attrs.items()},
            "body": self.block(function.body, depth),
        }

    def binder(self, var: Var) -> dict[str, Any]:
        if var in self.var_numbers:
            self.fail(f"the variable {var.name!r} is bound twice")
        number = self.var_numbers[var] = len(self.var_numbers)
        type_ = None if var.type is None else str(var.type)
        return {"var": number, "name": var.name, "type": type_}

    def block(self, block: Block, depth: int) -> dict[str, Any]:
        if depth > MAX_NESTING:
            self.fail(f"blocks are nested more than {MAX_NESTING} deep")
        bindings = [self.binding(b, depth) for b in block.bindings]
        return {"bindings": bindings, "result": self.atom(block.result)}

    def binding(self, binding: Binding, depth: int) -> dict[str, Any]:
        value = self.value(binding.value, depth)
        span = binding.span
        written = {**self.binder(binding.var), "value": value}
        return written if span is None else {**written, "span": [span.file, span.line]}

    def value(self, value: Expr, depth: int) -> dict[str, Any]:
        match value:
            case Call():
                args = [self.argument(a) for a in value.args]
                return {"call": self.atom(value.callee), "args": args}
            case TupleGetItem():
                return {"field": value.index, "of": self.atom(value.value)}
            case If():
                return {
                    "if": self.atom(value.condition),
                    "then": self.block(value.then_block, depth + 1),
                    "else": self.block(value.else_block, depth + 1),
                }
            case Function():
                return {"function": self.function(value, depth + 1)}
            case Construct():
                fields = [self.atom(f) for f in value.fields]
                return {"construct": value.constructor, "type": value.type.name, "fields": fields}
            case IsVariant():
                return {"is_variant": value.constructor, "of": self.atom(value.value)}
            case GetField():
                return {
                    "get_field": value.constructor,
                    "index": value.index,
                    "of": self.atom(value.value),
                    "type": str(value.type),
                }
            case MakeRef():
                return {"make_ref": self.atom(value.value)}
            case ReadRef():
                return {"read_ref": self.atom(value.ref)}
            case WriteRef():
                return {"write_ref": self.atom(value.ref), "value": self.atom(value.value)}
            case Fail():
                return {"fail": value.message, "type": str(value.type)}
            case _:
                return self.atom(value)

    def argument(self, argument: Any) -> Any:
        if isinstance(argument, Expr):
            return self.atom(argument)
        if not is_literal(argument):
            self.fail(f"an argument is a {type(argument).__name__}", expected="an atom or literal")
        return _literal(argument)

    def atom(self, atom: Expr, depth: int = 0) -> dict[str, Any]:
        if depth > MAX_NESTING:
            self.fail(f"tuples are nested more than {MAX_NESTING} deep")
        match atom:
            case Var():
                if atom not in self.var_numbers:
                    self.fail(f"the variable {atom.name!r} is not bound before its use")
                return {"var": self.var_numbers[atom]}
            case Constant():
                return {"constant": self.constant(atom)}
            case GlobalVar():
                return {"global": atom.name}
            case Op():
                return {"op": atom.name}
            case Tuple():
                return {"tuple": [self.atom(f, depth + 1) for f in atom.fields]}
            case _:
                self.fail(f"a {type(atom).__name__} stands where an atom is needed")

    def constant(self, constant: Constant) -> int:
        number = self.constant_numbers.get(constant)
        if number is None:
            number = self.constant_numbers[constant] = len(self.constants)
            self.constants.append(self.data(constant))
        return number

    def data(self, constant: Constant) -> dict[str, str]:
        tensor = constant.data
        if tensor.dtype not in FROM_TORCH:
            self.fail(f"a constant has the element type {tensor.dtype}")
        if self.external is None:
            return {"type": str(constant.type), "base64": to_base64(tensor)}
        names = (name for name, known in self.external.items() if known is tensor)
        name = next(names, None)
        if name is None:
            number = len(self.external)
            while f"constant.{number}" in self.external:
                number += 1
            name = f"constant.{number}"
            self.external[name] = tensor
        return {"type": str(constant.type), "tensor": name}


def _definition(definition: TypeDefinition) -> list[dict[str, Any]]:
    return [{"name": c.name, "fields": [str(f) for f in c.fields]} for c in definition.constructors]


def _literal(value: Any) -> Any:
    """Return a literal as JSON's values; a subclass counts as its plain Python value."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, tuple):
        return [_literal(v) for v in value]
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, SymbolicDim):
        return {"dim": str(value)}
    number = float(value)
    return number if math.isfinite(number) else {"float": repr(number)}
