"""Reads the patterns of match arms: ``Cons(%x, _)``, ``(%a, %b)``, ``%v: float32``."""

from __future__ import annotations

from meta.frontend.relay import ast
from meta.frontend.relay.text.atoms import constructor, declare
from meta.frontend.relay.text.quoting import unquote
from meta.frontend.relay.text.reader import Reader
from meta.frontend.relay.text.types import take_comment


def read_pattern(r: Reader, depth: int = 0) -> ast.Pattern:
    """Read a pattern; its variables are in scope afterwards."""
    lex = r.lex
    if depth >= ast.MAX_NESTING:
        raise r.too_deep()
    if lex.kind == "local":
        return ast.PatternVar(declare(r))
    if lex.kind == "(":
        return ast.PatternTuple(_patterns(r, depth))
    if lex.kind != "name":
        lex.fail("a pattern: '_', a variable, a constructor or a tuple")
    if lex.accept_name("_"):
        return ast.PatternWildcard()
    start, word = lex.start, lex.text
    name = unquote(word[1:]) if word[0] == "$" else word
    known = r.constructors.get(name)
    if known is None:
        lex.unknown("a constructor of a data type that is defined above", r.constructors)
    lex.advance()
    patterns = _patterns(r, depth) if lex.kind == "(" else ()
    take_comment(r)
    return ast.PatternConstructor(constructor(r, name, known, start), patterns)


def _patterns(r: Reader, depth: int) -> tuple[ast.Pattern, ...]:
    r.lex.advance()
    patterns: list[ast.Pattern] = []
    while r.lex.kind != ")":
        patterns.append(read_pattern(r, depth + 1))
        if not r.lex.accept(","):
            break
    r.lex.expect(")", "',' or ')'")
    return tuple(patterns)
