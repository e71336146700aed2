"""Reads program text, as `printer.py` describes it, into a `Module`.

A hand-written parser; nodes are read as their kinds declare. It loops over bindings and recurses
over nesting only, which it limits. Every error is an IRError with line, column and a caret under
the place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch

from meta.base.dtype import FROM_TORCH, is_real
from meta.base.errors import UnknownName
from meta.base.registry import nearest
from meta.ir.constants import from_base64, from_values
from meta.ir.expr import (
    Binding,
    Block,
    Call,
    Constant,
    ConstructorDefinition,
    Function,
    GlobalVar,
    Literal,
    Module,
    OpNode,
    Tuple,
    TypeDefinition,
    Var,
)
from meta.ir.lexer import Cursor
from meta.ir.literals import MAX_NESTING
from meta.ir.names import is_identifier
from meta.ir.node import SUFFIXES, WORDS, Expr, NamedField, Text
from meta.ir.operators import resolve_op, slots_of
from meta.ir.type_parser import (
    read_int,
    read_name,
    read_sum,
    read_tensor_type,
    read_type,
    read_types,
)
from meta.ir.types import TensorType, Type

_WORDS: dict[str, Literal] = {
    "None": None,
    "True": True,
    "False": False,
    "nan": float("nan"),
    "inf": float("inf"),
}


def parse(
    text: str, file: str = "<text>", constants: Mapping[str, torch.Tensor] | None = None
) -> Module:
    """Return the module that a program text describes.

    ``file`` names the text in errors. ``constants``: the tensors that the text refers to by name.
    Raises IRError for a text that breaks the grammar, uses an unknown name or nests too deep. What
    the grammar cannot see is left to `verify`.

    >>> module = meta.ir.parse('''
    ... func @main(%x: float32[n, 3]) -> float32[n, 3] {
    ...   %y: float32[n, 3] = softmax(%x, axis=-1)
    ...   return %y
    ... }''')
    >>> module.main.body.bindings[0].value.callee.name
    'softmax'
    """
    parser = Parser(text, file, constants)
    functions: dict[str, Function] = {}
    types: dict[str, TypeDefinition] = {}
    while parser.cursor.kind != "end":
        if parser.cursor.accept_name("func"):
            at = parser.cursor.start
            name = parser.global_name()
            if name in functions:
                parser.cursor.fail("one function of each name", f"a second @{name}", at=at)
            functions[name] = parser.function()
        elif parser.cursor.accept_name("type"):
            at, definition = parser.cursor.start, parser.definition()
            if definition.name in types:
                parser.cursor.fail("one data type of each name", repr(definition.name), at=at)
            types[definition.name] = definition
        elif not parser.data():
            parser.cursor.fail("'func', 'type' or 'data'")
    parser.finish()
    for name, (var, at) in parser.globals.items():
        if name not in functions:
            parser.cursor.fail(
                "a function of this module", f"@{name}", hint=nearest(name, functions), at=at
            )
        var.type = functions[name].type
    return Module(functions, types)


def parse_function(text: str) -> Function:
    """Return one function, ``fn(...) {...}`` or ``func @name(...) {...}``, as in `parse`.

    Functions of a module may be referred to and are not looked up.

    >>> print(meta.ir.parse_function("fn(%x: float32[3]) { %y = exp(%x) return %y }"))
    fn(%x: float32[3]) {
      %y = exp(%x)
      return %y
    }
    """
    parser = Parser(text, "<text>")
    if parser.cursor.accept_name("func"):
        parser.global_name()
    else:
        parser.cursor.expect_name("fn")
    function = parser.function()
    while parser.data():
        pass
    parser.cursor.expect("end")
    parser.finish()
    return function


def parse_type(text: str) -> Type:
    """Return the type that a text such as ``float32[3, n]`` describes; IRError as in `parse`.

    >>> pair = meta.ir.parse_type("(int64[], float16[3, n])")
    >>> len(pair.fields), pair.fields[1].dtype, pair.fields[1].shape[0]
    (2, 'float16', 3)
    """
    cursor = Cursor(text, "<text>")
    found = read_type(cursor)
    cursor.expect("end")
    return found


def parse_literal(text: str) -> Literal:
    """Return the literal that a text describes; IRError as in `parse`, and for anything else.

    >>> meta.ir.parse_literal('(1, 2.5, "same", None, True)')
    (1, 2.5, 'same', None, True)
    """
    parser = Parser(text, "<text>")
    found = parser.literal()
    parser.cursor.expect("end")
    return found


class Parser:
    """Reads one text. The fields of node kinds (`fields.py`) read themselves with it."""

    def __init__(
        self, text: str, file: str, external: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        self.external = external or {}
        self.cursor = Cursor(text, file)
        self.depth = -1  # how many blocks are around
        self.scope: dict[str, Var] = {}
        self.globals: dict[str, tuple[GlobalVar, int]] = {}
        self.ops: dict[str, OpNode] = {}
        # A constant is made where it is first used and gets its data, from further down, later.
        self.constants: dict[str, Constant] = {}
        self.without_data: dict[str, int] = {}

    def function(self) -> Function:
        """Read a function from its parameter list on."""
        found = self.node(Function, Function.spec.form[1:])
        assert isinstance(found, Function)
        return found

    def node(self, kind: type[Expr], form: Iterable[NamedField | Text], **known: Any) -> Expr:
        """Read the pieces of a node's form that are left, beside the fields that are known."""
        outer = len(self.scope)
        for piece in form:
            if isinstance(piece, NamedField):
                known[piece.name] = piece.field.read(self)
            else:
                self.tokens(piece.tokens)
        self.leave(outer)
        return kind(**known)

    def tokens(self, tokens: Iterable[str]) -> None:
        """Step over these tokens, or fail."""
        for token in tokens:
            if is_identifier(token):
                self.cursor.expect_name(token)
            else:
                self.cursor.expect(token)

    def definition(self) -> TypeDefinition:
        """Read a data type's definition from its name on."""
        cursor = self.cursor
        name = read_name(cursor, "a data type's name")
        cursor.expect("{")
        constructors: dict[str, ConstructorDefinition] = {}
        while not cursor.accept("}"):
            at, constructor = cursor.start, read_name(cursor, "a constructor or '}'")
            if constructor in constructors:
                cursor.fail("constructors with different names", repr(constructor), at=at)
            constructors[constructor] = ConstructorDefinition(constructor, read_types(cursor))
        return TypeDefinition(name, tuple(constructors.values()))

    def binder(self) -> Var:
        """Read ``%name: type``, whose type may be missing, and put the variable in scope."""
        name, type_ = self.typed_name()
        var = self.scope[name] = Var(name[1:], type_)
        return var

    def typed_name(self) -> tuple[str, Type | None]:
        cursor, at = self.cursor, self.cursor.start
        name = cursor.expect("var")
        if name in self.scope:
            cursor.fail("a new name", f"{name}, which is bound already", at=at)
        return name, read_type(cursor) if cursor.accept(":") else None

    def block(self, keyword: str) -> Block:
        """Read ``{ bindings keyword result }``."""
        cursor, outer = self.cursor, len(self.scope)
        self.depth += 1
        if self.depth > MAX_NESTING:
            cursor.fail(f"blocks nested at most {MAX_NESTING} deep")
        cursor.expect("{")
        bindings: list[Binding] = []
        while cursor.kind == "var":
            bindings.append(self.binding())
        if not cursor.accept_name(keyword):
            cursor.fail(f"a binding, '%name = value', or '{keyword}'")
        result = self.atom()
        cursor.expect("}")
        self.leave(outer)
        self.depth -= 1
        return Block(tuple(bindings), result)

    def leave(self, size: int) -> None:
        """Shrink the scope to the names that it had."""
        while len(self.scope) > size:
            self.scope.popitem()

    def binding(self) -> Binding:
        cursor = self.cursor
        span = cursor.span_at(cursor.start)
        name, type_ = self.typed_name()
        cursor.expect("=", "':' or '='" if type_ is None else "'='")
        value = self.value()
        # Only now: a value cannot refer to its own name.
        var = self.scope[name] = Var(name[1:], type_)
        return Binding(var, value, span)

    def value(self) -> Expr:
        """Read what can be bound: an atom, a call, or a node of a kind that has a form."""
        cursor = self.cursor
        kind = WORDS.get(cursor.text) if cursor.kind == "name" else None
        if kind is not None:
            return self.node(kind, kind.spec.form)
        atom = self.atom()
        if cursor.kind == "(":
            return Call(atom, self.call_arguments(atom))
        kind = SUFFIXES.get(cursor.kind)
        if kind is None:
            return atom
        first, *form = kind.spec.form
        assert isinstance(first, NamedField)
        return self.node(kind, form, **{first.name: atom})

    def call_arguments(self, callee: Expr) -> tuple[Expr | Literal, ...]:
        """Read arguments by position, then by slot name, and fill in the slots' defaults."""
        cursor, at = self.cursor, self.cursor.start
        named: dict[str, Expr | Literal] = {}
        positional: list[Expr | Literal] = []
        slots = slots_of(callee)
        names = [slot.name for slot in slots or ()]

        def read() -> None:
            if cursor.kind == "name" and cursor.next_kind == "=":
                name = cursor.text
                if name not in names[len(positional) :] or name in named:
                    free = [n for n in names[len(positional) :] if n not in named]
                    cursor.fail("the name of a slot without argument", hint=nearest(name, free))
                cursor.advance()
                cursor.advance()
                named[name] = self.argument()
            elif named:
                cursor.fail("'name=value' after an argument by name")
            elif slots is not None and len(positional) == len(slots):
                cursor.fail(f"at most {len(slots)} arguments")
            else:
                positional.append(self.argument())

        cursor.items(read)
        for slot in (slots or ())[len(positional) :]:
            if slot.name not in named and not slot.has_default:
                cursor.fail(f"an argument for the slot {slot.name!r}", "none", at=at)
            positional.append(named.get(slot.name, slot.default))
        return tuple(positional)

    def atom(self) -> Expr:
        """Read a variable, a constant, a global name, an operator or a tuple of these."""
        cursor, at = self.cursor, self.cursor.start
        found = self.argument()
        if isinstance(found, Expr):
            return found
        if found == ():
            return Tuple(())
        cursor.fail(
            "an atom: a variable, a constant, a global name, an operator or a tuple of these",
            "a plain literal",
            hint="const int64[] 1 for a tensor that holds 1",
            at=at,
        )

    def literal(self) -> Literal:
        """Read a literal."""
        at, found = self.cursor.start, self.argument()
        if isinstance(found, Expr):
            self.cursor.fail("a literal", at=at, found="a value of the program")
        return found

    def argument(self, depth: int = 0) -> Expr | Literal:
        """Read an atom or a literal."""
        cursor = self.cursor
        match cursor.kind:
            case "var":
                if cursor.text not in self.scope:
                    cursor.fail("a variable in scope", hint=nearest(cursor.text, self.scope))
                return self.scope[cursor.advance()]
            case "number":
                text = cursor.text
                return read_int(cursor) if text.lstrip("-").isdigit() else float(cursor.advance())
            case "name":
                return self.word()
            case "string":
                at = cursor.start
                return cursor.unquoted(cursor.advance(), at)
            case "(":
                return self.tuple(depth)
            case "global":
                at, name = cursor.start, self.global_name()
                return self.globals.setdefault(name, (GlobalVar(name), at))[0]
            case "data":
                return self.data_reference()
            case _:
                cursor.fail("an atom or a literal")

    def word(self) -> Expr | Literal:
        """Read a literal that is a word, ``const``, ``dim``, or an operator's name."""
        cursor = self.cursor
        name = cursor.text
        if name in _WORDS:
            return _WORDS[cursor.advance()]
        if cursor.accept_name("const"):
            return self.constant()
        if cursor.accept_name("dim"):
            return read_sum(cursor)
        if name not in self.ops:
            try:
                self.ops[name] = resolve_op(name)
            except UnknownName as error:
                cursor.fail("an operator", f"{name!r}: {error.what}", hint=error.hint)
        cursor.advance()
        return self.ops[name]

    def constant(self) -> Constant:
        """Read ``float32[2] [1.0, 2.5]`` or ``float32[] 1.0``."""
        cursor, at, found = self.cursor, self.cursor.start, self.static_type()
        element = partial(self.element, found.dtype)
        values = cursor.items(element, "[", "]") if found.shape else (element(),)
        try:
            return Constant(from_values(values, found.static_shape, found.dtype))
        except ValueError as error:
            cursor.fail(f"a constant of type {found}", str(error), at=at)

    def static_type(self) -> TensorType:
        """Read a tensor type without symbolic or unknown dimensions."""
        at, found = self.cursor.start, read_tensor_type(self.cursor)
        if not found.is_static:
            self.cursor.fail("a type without unknown dimensions", str(found), at=at)
        return found

    def element(self, dtype: str) -> float | int | bool:
        """Read one number of a constant."""
        cursor = self.cursor
        if dtype == "bool":
            if cursor.text not in ("True", "False"):
                cursor.fail("True or False")
            return cursor.advance() == "True"
        if not is_real(dtype):
            return read_int(cursor)
        if cursor.kind != "number" and cursor.text not in ("nan", "inf"):
            cursor.fail("a number")
        return float(cursor.advance())

    def tuple(self, depth: int) -> Expr | Literal:
        """Read ``(,)`` or ``(atom, ...)``, a `Tuple`, or ``(literal, ...)``, a Python tuple."""
        cursor, at = self.cursor, self.cursor.start
        if depth >= MAX_NESTING:
            cursor.fail(f"tuples nested at most {MAX_NESTING} deep")
        if cursor.next_kind == ",":
            cursor.advance()
            cursor.advance()
            cursor.expect(")")
            return Tuple(())
        fields = cursor.items(lambda: self.argument(depth + 1))
        atoms = [isinstance(f, Expr) for f in fields]
        if any(atoms) and not all(atoms):
            cursor.fail("a tuple of atoms or a tuple of literals", "a tuple of both", at=at)
        return Tuple(fields) if any(atoms) else fields

    def global_name(self) -> str:
        at, text = self.cursor.start, self.cursor.expect("global")[1:]
        return self.cursor.unquoted(text, at) if text[0] == '"' else text

    def data_reference(self) -> Constant:
        at, name = self.cursor.start, self.cursor.advance()
        if name not in self.constants:
            self.constants[name] = Constant(torch.empty(0))
            self.without_data[name] = at
        return self.constants[name]

    def data(self) -> bool:
        """Read ``data @data.0 = type "base64"``, or ``tensor "name"``, if there is one."""
        cursor = self.cursor
        if not cursor.accept_name("data"):
            return False
        at, name = cursor.start, cursor.expect("data", "a name such as @data.0")
        if name in self.constants and name not in self.without_data:
            cursor.fail("data of each name once", f"a second {name}", at=at)
        cursor.expect("=")
        found = self.static_type()
        data = self.external_tensor(found) if cursor.accept_name("tensor") else self.bytes_of(found)
        self.constants.setdefault(name, Constant(data)).data = data
        self.without_data.pop(name, None)
        return True

    def bytes_of(self, type_: TensorType) -> torch.Tensor:
        """Read ``"base64"``."""
        at = self.cursor.start
        payload = self.cursor.expect("string", "the bytes, a string in base64")[1:-1]
        try:
            return from_base64(payload, type_.static_shape, type_.dtype)
        except ValueError as error:
            self.cursor.fail(f"the bytes of a {type_}", str(error), at=at)

    def external_tensor(self, type_: TensorType) -> torch.Tensor:
        """Read the name of a tensor that is kept elsewhere."""
        cursor, at = self.cursor, self.cursor.start
        name = cursor.unquoted(cursor.expect("string", "a tensor's name, a string"), at)
        if name not in self.external:
            hint = nearest(name, self.external)
            cursor.fail("a tensor that is given with the text", repr(name), hint=hint, at=at)
        tensor = self.external[name]
        if FROM_TORCH.get(tensor.dtype) != type_.dtype or tuple(tensor.shape) != type_.shape:
            cursor.fail(type_, f"{name!r}, a {tensor.dtype}{list(tensor.shape)}", at=at)
        return tensor

    def finish(self) -> None:
        """Check that every constant got its data."""
        for name, at in self.without_data.items():
            self.cursor.fail("a constant with a data line", f"{name}, which has none", at=at)
