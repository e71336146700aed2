"""Reads what has no parts (literals, variables, numbers of graph bindings, names, metadata) and the
attributes of calls and functions: ``axis=1, keepdims=True, layout="NCHW"``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch

from meta.frontend.relay import ast
from meta.frontend.relay.text.lexer import (
    KEYWORDS,
    MALFORMED,
    STRING,
    parse_number,
    scalar,
    unquote,
)
from meta.frontend.relay.text.reader import (
    CONSTANT,
    Missing,
    Reader,
    read_name,
    read_type,
    take_comment,
    unavailable,
)

_AFTER_NAME = re.compile(r"(?<=:)|\s*(?:/\*[^*/]*\*/\s*)*(?:[:,)={]|\Z)")
_SEMICOLON = re.compile(r"\s*;")
_LOOSE = re.compile(r"[^\n%]{1,200}?(?=: (?:Tensor\[|\(|fn |ref\(|u?int[0-9]|b?float[0-9]|bool\b))")
_TYPE_START = re.compile(r"[^\W\d]")


def _number(r: Reader) -> ast.Expr:
    lex = r.lex
    start = lex.start
    try:
        value, dtype = parse_number(lex.text)
    except ValueError as error:
        lex.fail(str(error))
    place = lex.place(start)
    lex.advance()
    stated = take_comment(r)
    tensor = None if dtype is not None else _annotated_literal(value, stated)
    if tensor is None:
        if dtype is None and isinstance(value, int):
            dtype = "int32" if -(2**31) <= value < 2**31 else "int64"
        try:
            tensor = scalar(value, dtype or "float32")
        except ValueError as error:
            lex.fail(str(error), f"{value!r}", at=start)
    return ast.Constant(tensor, checked_type=stated, place=place)


def _annotated_literal(value: int | float, stated: ast.Type | None) -> torch.Tensor | None:
    """Return the tensor that a literal without a suffix is by the comment behind it.

    Up to TVM 0.8 the dtype of a literal is nowhere else: ``2 /* ty=float64 */``.
    """
    if not isinstance(stated, ast.TensorType) or stated.shape:
        return None
    try:
        return scalar(value, stated.dtype)
    except (ValueError, KeyError):  # the comment says something else
        return None


def _local(r: Reader) -> ast.Expr:
    """Read a variable; what the token has more than the longest declared name is given back."""
    lex = r.lex
    run = lex.text[1:]
    var = r.scope.find_loose(run, lex.source, lex.start + 1)
    if var is not None:
        lex.end = lex.start + 1 + len(var.name)
        lex.advance()
        return var
    var = r.scope.find(unquote(run) if run[:1] == '"' else run)
    if var is None:
        var = r.scope.find_in(run) if run[:1] != '"' else None
        if var is None:
            lex.unknown("a variable in scope", chain(r.scope.variables, r.scope.free))
        lex.cut(1 + len(var.name))
    lex.advance()
    return var


def declare(r: Reader, *, free: bool = False) -> ast.Var:
    """Read the name of a new variable and its type, if there is one, and let it be in scope."""
    lex = r.lex
    run = lex.text[1:] if lex.kind == "local" else ""
    if lex.kind == "graph":
        lex.fail("a variable: its name does not begin with a digit")
    if lex.kind != "local" or not run:
        lex.fail("the name of a variable, such as %x")
    place = lex.place(lex.start)
    if run[0] == '"':
        name = unquote(run)
    else:
        name = _declared(r, run, free)
        lex.end = lex.start + 1 + len(name)
        name = name.removesuffix(MALFORMED)
    var = ast.Var(name, place=place)
    lex.advance()
    if lex.kind == "{":
        _virtual_device(r)
    if lex.accept(":"):
        var.type = read_type(r)
    var.checked_type = take_comment(r)
    r.scope.declare(var, free)
    return var


def _declared(r: Reader, run: str, free: bool) -> str:
    """Return the name that ``run`` begins with, without the colon and the type behind it.

    A colon within a name is followed by a digit or by another colon, as in "input:0". Where no
    declaration can go on as this one does, the name has characters that otherwise end one, and
    reaches to the type.
    """
    if not (r.lex.follows(_AFTER_NAME) or (free and r.lex.follows(_SEMICOLON))):
        loose = _LOOSE.match(r.lex.source, r.lex.end)
        if loose is not None:
            r.scope.note_loose(run, loose[0])
            return run + loose[0]
    name, colon, rest = run.rpartition(":")
    if colon and (not rest or _TYPE_START.match(rest)):
        return name
    return run


def _virtual_device(r: Reader) -> None:
    """Read ``{virtual_device=meta[VirtualDevice][0]}`` behind a parameter, which is left out."""
    lex = r.lex
    lex.advance()
    lex.expect_name("virtual_device")
    lex.expect("=")
    if lex.kind != "name" or lex.text != "meta":
        lex.fail("meta[VirtualDevice][0]")
    r.metadata.take(lex)
    lex.expect("}")
    said = "virtual devices of parameters are left out"
    if said not in r.warnings:
        r.warnings.append(said)


def _graph(r: Reader) -> ast.Expr:
    value = r.scope.numbers.get(r.lex.text)
    if value is None:
        r.lex.fail("a number that a graph binding, such as '%0 = ...;', has bound before")
    r.lex.advance()
    return value


def _global(r: Reader) -> ast.Expr:
    place = r.lex.place(r.lex.start)
    return ast.GlobalVar(global_name(r), place=place)


def global_name(r: Reader) -> str:
    """Read the name of a function of the module."""
    text = r.lex.text
    if r.lex.kind != "global" or len(text) == 1:
        r.lex.fail("the name of a function of the module, such as @main")
    r.lex.advance()
    return unquote(text[1:]) if text[1] == '"' else text[1:]


def _string(r: Reader) -> ast.Expr:
    r.lex.fail(
        "an expression", "a string", hint="strings stand in attributes, 'cast(%x, dtype=\"int8\")'"
    )


SIMPLE: dict[str, Callable[[Reader], ast.Expr]] = {
    "number": _number,
    "local": _local,
    "graph": _graph,
    "global": _global,
    "string": _string,
}
"""How expressions that are one token are read, by its kind; names apart."""


def read_word(r: Reader) -> ast.Expr:
    """Read True, False, a reference to metadata, a constructor or an operator."""
    lex = r.lex
    start, word = lex.start, lex.text
    if word in ("True", "False"):
        lex.advance()
        stated = take_comment(r)
        value = torch.tensor(word == "True")
        return ast.Constant(value, checked_type=stated, place=lex.place(start))
    if word == "meta":
        return _from_metadata(r)
    if word in KEYWORDS and word not in r.constructors:  # the prelude has one named None
        lex.fail("an expression")
    name = read_name(r, "an expression")
    known = r.constructors.get(name)
    if known is None:
        r.operators.setdefault(name, start)
        return ast.Op(name, place=lex.place(start))
    return ast.Constructor(name, known[0], place=lex.place(start))


def _from_metadata(r: Reader) -> ast.Expr:
    lex = r.lex
    start = lex.start
    item = r.metadata.take(lex)
    if isinstance(item, Missing):
        if item.type_key != CONSTANT:
            raise unavailable(lex, item, start)
        item = r.metadata.constant(item)
    if not isinstance(item, ast.Expr):
        lex.fail("an expression", f"a {type(item).__name__} of the metadata section", at=start)
    if item.place is None:
        item.place = lex.place(start)
    return item


# A key may hold what an operator's name may not; TVM writes any key of a function as it is.
_KEY = re.compile(rf"(\$(?:{STRING})|[^\W\d][\w.:/@#$-]*)(?:\s|/\*[^*]*\*/)*=(?![=>])")
# Most values are of these forms, and are read at once: the other way is token by token.
_INT = r"-?[0-9]{1,9}"
_PLAIN = re.compile(rf'(?:({_INT})|\[({_INT}(?:, ?{_INT})*)\]|"([^"\\]*)"|(True|False))(?=[,)])')
_TYPE_KEY = "attrs_type_key"


def at_attribute(r: Reader) -> bool:
    """Tell whether the current token begins ``name=value``."""
    return r.lex.kind == "name" and _KEY.match(r.lex.source, r.lex.start) is not None


def read_attributes(r: Reader) -> dict[str, Any]:
    """Read attributes with commas between them, up to what is none."""
    fields: dict[str, Any] = {}
    lex = r.lex
    while (key := _KEY.match(lex.source, lex.start) if lex.kind == "name" else None) is not None:
        text = key[1]
        name = unquote(text[1:]) if text[0] == "$" else text
        if name in fields:
            lex.fail("an attribute that is not there yet")
        lex.end = key.end()
        plain = _PLAIN.match(lex.source, lex.end)
        if plain is not None:
            lex.end = plain.end()
            fields[name] = _plain(plain)
            lex.advance()
        else:
            lex.advance()
            fields[name] = _value(r, 0)
        if not lex.accept(","):
            break
        if lex.kind != ")" and not at_attribute(r):
            lex.fail("an attribute, 'name=value': they come last")
    return fields


def _plain(match: re.Match[str]) -> Any:
    number, numbers, string, truth = match.groups()
    if number is not None:
        return int(number)
    if numbers is not None:
        return tuple(map(int, numbers.split(",")))
    return string if string is not None else truth == "True"


def call_attributes(r: Reader) -> ast.Attrs:
    """Read the attributes of a call."""
    fields = read_attributes(r)
    key = fields.pop(_TYPE_KEY, None)
    if key is not None and not isinstance(key, str):
        r.lex.fail(f"a string for {_TYPE_KEY}", repr(key))
    return ast.Attrs(fields, key)


def metadata_attributes(r: Reader) -> ast.Attrs | None:
    """Read ``meta[relay.attrs.X][0]`` as attributes of a call; None if there is something else."""
    lex = r.lex
    if lex.kind != "name" or lex.text != "meta":
        return None
    item, _ = r.metadata.at(lex)
    if isinstance(item, Missing):
        if item.type_key.startswith("relay.attrs."):
            raise unavailable(lex, item, lex.start)
        return None
    if isinstance(item, dict):
        item = ast.Attrs(item, "DictAttrs")
    if not isinstance(item, ast.Attrs):
        return None
    r.metadata.take(lex)
    return item


def _value(r: Reader, depth: int) -> Any:
    lex = r.lex
    if depth >= ast.MAX_NESTING:
        raise r.too_deep()
    kind = lex.kind
    if kind == "number":
        return _signed(r, 1)
    if kind == "string":
        return unquote(lex.advance())
    if kind == "[":
        return _values(r, "]", depth)
    if kind == "(":
        values = _values(r, ")", depth)
        return values[0] if len(values) == 1 and not lex.trailing_comma else values
    if kind == "-":
        lex.advance()
        if lex.kind != "number":
            lex.fail("a number")
        return _signed(r, -1)
    if kind == "name":
        return _word(r)
    if kind in SIMPLE:
        return SIMPLE[kind](r)
    lex.fail("the value of an attribute")


def _values(r: Reader, close: str, depth: int) -> tuple[Any, ...]:
    """Read values up to a closing mark."""
    r.lex.advance()
    return tuple([_value(r, depth + 1) for _ in r.lex.items(close)])


def _signed(r: Reader, sign: int) -> int | float:
    """Read a number; its dtype, as in ``[0i64]``, is that of TVM's object and says nothing here."""
    try:
        value, _ = parse_number(r.lex.text)
    except ValueError as error:
        r.lex.fail(str(error))
    r.lex.advance()
    return sign * value


def _word(r: Reader) -> Any:
    lex = r.lex
    word, start = lex.text, lex.start
    if word in ("True", "False"):
        lex.advance()
        return word == "True"
    if word in ("None", "nullptr"):
        lex.advance()
        return None
    if word != "meta":
        return read_word(r)
    item = r.metadata.take(lex)
    if not isinstance(item, Missing):
        return item
    if item.type_key == "relay.Constant":
        return r.metadata.constant(item)
    if item.type_key in ("runtime.BoxInt", "runtime.BoxFloat", "runtime.BoxBool"):
        raise unavailable(lex, item, start)
    return ast.Opaque(item.type_key, (("missing", item.text),))
