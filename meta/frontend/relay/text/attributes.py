"""Reads attributes of calls and functions: ``axis=1, keepdims=True, layout="NCHW"``."""

from __future__ import annotations

import re
from typing import Any

from meta.frontend.relay import ast
from meta.frontend.relay.text.atoms import SIMPLE, read_word
from meta.frontend.relay.text.literals import STRING, parse_number, unquote
from meta.frontend.relay.text.metadata import Missing, unavailable
from meta.frontend.relay.text.reader import Reader

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


def whole_attributes(r: Reader) -> ast.Attrs | None:
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
        item = ast.Attrs(item, "DictAttrs", whole=True)
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
        return _number(r, 1)
    if kind == "string":
        return unquote(lex.advance())
    if kind == "[":
        return _values(r, "]", depth)[0]
    if kind == "(":
        values, comma = _values(r, ")", depth)
        return values[0] if len(values) == 1 and not comma else values
    if kind == "-":
        lex.advance()
        if lex.kind != "number":
            lex.fail("a number")
        return _number(r, -1)
    if kind == "name":
        return _word(r)
    if kind in SIMPLE:
        return SIMPLE[kind](r)
    lex.fail("the value of an attribute")


def _values(r: Reader, close: str, depth: int) -> tuple[tuple[Any, ...], bool]:
    """Read values up to a closing mark; tell also whether a comma stands before it."""
    r.lex.advance()
    values: list[Any] = []
    comma = False
    while r.lex.kind != close:
        values.append(_value(r, depth + 1))
        comma = r.lex.accept(",")
        if not comma:
            break
    r.lex.expect(close, f"',' or {close!r}")
    return tuple(values), comma


def _number(r: Reader, sign: int) -> int | float:
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
