"""Reads types: ``Tensor[(2, ?), float32]``, ``fn (T) -> U``, ``List[A]``, ``(T, U)``."""

from __future__ import annotations

import re
from dataclasses import replace

from meta.frontend.relay import ast
from meta.frontend.relay.errors import RelayError
from meta.frontend.relay.text.lexer import DTYPE, SHORT_DTYPES, Lexer, parse_number, unquote
from meta.frontend.relay.text.reader import Missing, Reader, Step, run

_LARGEST = 2**63 - 1
_BRACKET = re.compile(r"\s*\[")
_PARENTHESIS = re.compile(r"\s*\(")


def read_type(r: Reader) -> ast.Type:
    """Read a type."""
    plain = _plain(r)
    return run(_compound(r, 0)) if plain is None else plain


def _plain(r: Reader) -> ast.Type | None:
    """Read a type that has no types in it; None if here is one that has."""
    lex = r.lex
    word = lex.text
    if lex.kind == "(":
        return None
    if lex.kind != "name":
        lex.fail("a type")
    if word == "Tensor":
        return _tensor(r)
    if word == "_":
        lex.advance()
        return ast.UnknownType()
    if word == "fn" or lex.follows(_BRACKET) or (word == "ref" and lex.follows(_PARENTHESIS)):
        return None
    name = read_name(r, "a type")
    if word[0] != "$" and DTYPE.fullmatch(name):
        return ast.TensorType((), SHORT_DTYPES.get(name, name))
    return ast.TypeVar(name) if name in r.type_vars else ast.DataType(name)


def _compound(r: Reader, depth: int) -> Step:
    """Read a type with types in it."""
    lex = r.lex
    if depth >= ast.MAX_NESTING:
        raise r.too_deep()
    if lex.accept("("):
        fields, comma = yield _types(r, ")", depth)
        # Up to version 0.0.4 parentheses group.
        return fields[0] if r.old and len(fields) == 1 and not comma else ast.TupleType(fields)
    if lex.accept_name("fn"):
        return (yield _function(r, depth))
    if lex.text == "ref" and lex.follows(_PARENTHESIS):
        lex.advance()
        lex.advance()
        value = yield _inner(r, depth)
        lex.expect(")")
        return ast.RefType(value)
    name = read_name(r, "a type")
    lex.expect("[")
    args, _ = yield _types(r, "]", depth)
    return ast.DataType(name, args)


def _inner(r: Reader, depth: int) -> Step:
    plain = _plain(r)
    return (yield _compound(r, depth + 1)) if plain is None else plain


def _types(r: Reader, close: str, depth: int) -> Step:
    """Read types up to a closing mark, and tell whether a comma stands before it."""
    types: list[ast.Type] = []
    for _ in r.lex.items(close):
        plain = _plain(r)
        types.append((yield _compound(r, depth + 1)) if plain is None else plain)
    return tuple(types), r.lex.trailing_comma


def _function(r: Reader, depth: int) -> Step:
    names = read_type_params(r)
    inner = replace(r, type_vars=r.type_vars | frozenset(names)) if names else r
    r.lex.expect("(")
    params, _ = yield _types(inner, ")", depth)
    r.lex.expect("->")
    return ast.FuncType(params, (yield _inner(inner, depth)), names)


def read_types(r: Reader, close: str) -> tuple[ast.Type, ...]:
    """Read types with commas between them up to a closing mark, which is stepped over."""
    types: tuple[ast.Type, ...] = run(_types(r, close, 0))[0]
    return types


def read_name(r: Reader, what: str) -> str:
    """Read a name without a sign."""
    text = r.lex.expect("name", what)
    return unquote(text[1:]) if text[0] == "$" else text


def read_type_params(r: Reader) -> tuple[str, ...]:
    """Read ``[A, B]`` if it is there."""
    if not r.lex.accept("["):
        return ()
    return tuple([read_name(r, "a type parameter") for _ in r.lex.items("]")])


def take_comment(r: Reader) -> ast.Type | None:
    """Return the type that the comment before the current token states, if it can be read."""
    text, r.lex.type_comment = r.lex.type_comment, None
    if text is None:
        return None
    key = (text, r.type_vars)
    if key not in r.comments:
        r.comments[key] = _comment(r, text)
    return r.comments[key]


def _comment(r: Reader, text: str) -> ast.Type | None:
    try:
        lex = Lexer(text, r.lex.file)
        inner = Reader(lex, r.metadata, r.old, type_vars=r.type_vars)
        result = read_type(inner)
    except RelayError:
        return None
    return result if lex.kind == "end" else None


def _tensor(r: Reader) -> ast.Type:
    lex = r.lex
    lex.advance()
    lex.expect("[")
    if lex.accept("("):
        dims = [_dim(r) for _ in lex.items(")")]
    elif r.old:
        dims = [_dim(r)]
    else:
        lex.fail("a shape, '('")
    lex.expect(",", "',' and a dtype")
    quoted = lex.text[:1] == "$"
    dtype = read_name(r, "a dtype")
    if dtype == "custom" and lex.accept("["):
        dtype = f"custom[{read_name(r, 'the name of a dtype')}]"
        lex.expect("]")
        dtype += lex.expect("number", "a number of bits")
    lex.expect("]")
    return ast.TensorType(tuple(dims), dtype if quoted else SHORT_DTYPES.get(dtype, dtype))


def _dim(r: Reader) -> ast.Dim:
    lex = r.lex
    if lex.accept("?"):
        return ast.AnyDim()
    if lex.kind == "name" and lex.text == "meta":
        at = lex.start
        item = r.metadata.take(lex)
        if isinstance(item, Missing):
            return ast.SymbolDim(item.text)
        if isinstance(item, int | ast.AnyDim | ast.SymbolDim) and not isinstance(item, bool):
            return item
        lex.fail("a dimension", f"a {type(item).__name__}", at=at)
    if lex.kind == "number" and (value := _integer(lex.text)) is not None:
        lex.advance()
        return value
    lex.fail(f"a dimension: '?' or an integer from 0 to {_LARGEST}")


def _integer(text: str) -> int | None:
    try:
        value, _ = parse_number(text)
    except ValueError:
        return None
    return value if isinstance(value, int) and 0 <= value <= _LARGEST else None
