"""Reads functions, branches, references, and matches with their patterns: ``Cons(%x, _)``, ``(%a,
%b)``.
"""

from __future__ import annotations

from typing import Any

from meta.frontend.relay import ast
from meta.frontend.relay.text.atoms import constructor, declare
from meta.frontend.relay.text.attributes import at_attribute, read_attributes
from meta.frontend.relay.text.expressions import COMPOUND, block, expression, operand
from meta.frontend.relay.text.literals import unquote
from meta.frontend.relay.text.reader import Reader, Step
from meta.frontend.relay.text.types import read_type, read_type_params, take_comment


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


def function(r: Reader, start: int) -> Step:
    """Read ``[A](%x: A, attr=value) -> A { ... }``, what is behind ``fn`` or a global's name."""
    lex = r.lex
    place = lex.place(start)
    mark, outer = r.scope.mark(), r.type_vars
    type_params = read_type_params(r)
    if type_params:
        r.type_vars = outer | frozenset(type_params)
    lex.expect("(")
    params, attrs = _params(r)
    lex.expect(")", "',' or ')'")
    result = read_type(r) if lex.accept("->") else None
    lex.type_comment = None
    body = yield block(r)
    r.scope.restore(mark)
    r.type_vars = outer
    return ast.Function(params, body, result, type_params, attrs, place=place)


def _params(r: Reader) -> tuple[tuple[ast.Var, ...], dict[str, Any]]:
    lex = r.lex
    params: list[ast.Var] = []
    while lex.kind != ")":
        if at_attribute(r):
            return tuple(params), read_attributes(r)
        params.append(declare(r))
        if not lex.accept(","):
            break
    return tuple(params), {}


def _fn(r: Reader) -> Step:
    start = r.lex.start
    r.lex.advance()
    return (yield function(r, start))


def _if(r: Reader) -> Step:
    """Read a branch. Without ``else`` it gives the empty tuple, as it is run for its effect."""
    lex = r.lex
    branches: list[tuple[ast.Place, ast.Expr, ast.Expr]] = []
    while True:
        place = lex.place(lex.start)
        lex.expect_name("if")
        lex.expect("(")
        condition = yield expression(r)
        lex.expect(")")
        branches.append((place, condition, (yield block(r))))
        if len(branches) + r.depth > ast.MAX_NESTING:
            raise r.too_deep()
        if not lex.accept_name("else"):
            value: ast.Expr = ast.Tuple((), place=place)
            break
        if lex.kind != "name" or lex.text != "if":
            value = yield block(r)
            break
    for place, condition, then in reversed(branches):
        value = ast.If(condition, then, value, place=place)
    return value


def _match(r: Reader) -> Step:
    lex = r.lex
    place = lex.place(lex.start)
    complete = lex.advance() == "match"
    value = yield operand(r)
    lex.expect("{", "'{' and the arms of the match")
    clauses: list[ast.Clause] = []
    while lex.kind != "}":
        mark = r.scope.mark()
        pattern = read_pattern(r)
        lex.expect("=>", "'=>' and what the arm gives")
        body = yield (block(r) if lex.kind == "{" else expression(r))
        clauses.append(ast.Clause(pattern, body))
        r.scope.restore(mark)
        if not lex.accept(","):
            break
    lex.expect("}", "',' or '}'")
    return ast.Match(value, tuple(clauses), complete, place=place)


def _arguments(r: Reader, count: int) -> Step:
    lex = r.lex
    lex.advance()
    lex.expect("(")
    args: list[ast.Expr] = []
    for i in range(count):
        if i:
            lex.expect(",")
        args.append((yield expression(r)))
    lex.accept(",")
    lex.expect(")")
    return args


def _ref(r: Reader) -> Step:
    place = r.lex.place(r.lex.start)
    (value,) = yield _arguments(r, 1)
    return ast.RefCreate(value, place=place)


def _ref_read(r: Reader) -> Step:
    place = r.lex.place(r.lex.start)
    (ref,) = yield _arguments(r, 1)
    return ast.RefRead(ref, place=place)


def _ref_write(r: Reader) -> Step:
    place = r.lex.place(r.lex.start)
    ref, value = yield _arguments(r, 2)
    return ast.RefWrite(ref, value, place=place)


COMPOUND.update(
    {
        "fn": _fn,
        "if": _if,
        "match": _match,
        "match?": _match,
        "ref": _ref,
        "ref_read": _ref_read,
        "ref_write": _ref_write,
    }
)
