"""Reads expressions: bindings, operators between values, calls, projections, tuples, lists,
functions, branches, references, and matches with their patterns. See `reader.py` for why these are
generators.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from meta.frontend.relay import ast
from meta.frontend.relay.text.atoms import (
    SIMPLE,
    at_attribute,
    call_attributes,
    declare,
    metadata_attributes,
    read_attributes,
    read_word,
)
from meta.frontend.relay.text.lexer import unquote
from meta.frontend.relay.text.reader import Reader, Step, read_type, read_type_params, take_comment

OPERATORS = {
    "*": ("multiply", 4),
    "/": ("divide", 4),
    "+": ("add", 3),
    "-": ("subtract", 3),
    "<": ("less", 2),
    "<=": ("less_equal", 2),
    ">": ("greater", 2),
    ">=": ("greater_equal", 2),
    "==": ("equal", 1),
    "!=": ("not_equal", 1),
}
"""Operators between two values: the Relay operator and how tightly it binds."""

_EQUALS = re.compile(r"\s*=(?![=>])")
_END_OF_ARGUMENT = re.compile(r"(?:\s*/\*[^*/]*\*/)*\s*[,)]")
_MAX_INDEX = 2**31 - 1


def expression(r: Reader) -> Step:
    """Read bindings and the value they are for. Variables that it binds end with it."""
    lex = r.lex
    r.enter()
    mark = r.scope.mark()
    lets: list[tuple[ast.Var, ast.Expr, int]] = []
    while True:
        start, kind = lex.start, lex.kind
        if kind == "graph" and lex.follows(_EQUALS):
            number = lex.advance()
            lex.advance()
            value = yield infix(r)
            lex.expect(";", "';' after a binding")
            if r.scope.bind(number, value):
                r.rebound.append(lex.place(start))
        elif kind == "name" and lex.text == "let":
            lex.advance()
            lex.accept_name("mut")
            var = declare(r)
            lex.expect("=", "'=' and the value of the variable")
            value = yield infix(r)
            if not lex.accept(";;"):
                lex.expect(";", "';' after a binding")
            lets.append((var, value, start))
        elif kind == "name" and lex.text == "free_var":
            lex.advance()
            declare(r, free=True)
            lex.accept(";")
        else:
            value = yield infix(r)
            if not (lex.accept(";") or lex.accept(";;")):
                break
            lets.append((ast.Var("_", place=lex.place(start)), value, start))
        r.progress(lex.start)
    for var, bound, start in reversed(lets):
        value = ast.Let(var, bound, value, place=lex.place(start))
    r.scope.restore(mark)
    r.depth -= 1
    return value


def infix(r: Reader) -> Step:
    """Read values with operators between them."""
    lex = r.lex
    start = lex.start
    first = yield operand(r)
    operator = _operator(r)
    if operator is None:
        return first
    values: list[tuple[ast.Expr, int]] = [(first, start)]
    pending: list[str] = []
    while True:
        binds = OPERATORS[operator][1] if operator else 0
        while pending and OPERATORS[pending[-1]][1] >= binds:
            right, _ = values.pop()
            left, start = values.pop()
            name = OPERATORS[pending.pop()][0]
            place = lex.place(start)
            values.append((ast.Call(ast.Op(name, place=place), (left, right), place=place), start))
        if operator is None:
            return values[0][0]
        pending.append(operator)
        lex.advance()
        start = lex.start
        values.append(((yield operand(r)), start))
        operator = _operator(r)


def _operator(r: Reader) -> str | None:
    """Return the operator at the current token."""
    lex = r.lex
    if lex.kind == "number" and lex.text[0] == "-":
        if not r.old:  # where "-1" is a number wherever it stands
            lex.fail("an operator or the end of the expression", hint="put a blank behind '-'")
        lex.cut(1)
        lex.kind = "-"
    return lex.kind if lex.kind in OPERATORS else None


def operand(r: Reader) -> Step:
    """Read a value with the argument lists and projections behind it, and signs before it."""
    lex = r.lex
    signs: list[int] = []
    while lex.kind == "-":
        signs.append(lex.start)
        lex.advance()
    start, kind = lex.start, lex.kind
    if kind in SIMPLE:
        value = SIMPLE[kind](r)
    elif kind == "name":
        compound = COMPOUND.get(lex.text)
        value = read_word(r) if compound is None else (yield compound(r))
    elif kind in _BRACKETS:
        value = yield _BRACKETS[kind](r)
    else:
        lex.fail("an expression")
    _note_type(r, value)
    while True:
        if lex.kind == "(":
            value = yield _call(r, value, start)
        elif lex.kind == "projection":
            value = _projection(r, value, start)
        else:
            break
        _note_type(r, value)
    value = _call_of_constructor(r, value)
    for at in reversed(signs):
        place = lex.place(at)
        value = ast.Call(ast.Op("negative", place=place), (value,), place=place)
    return value


def _note_type(r: Reader, value: ast.Expr) -> None:
    if r.lex.type_comment is not None:
        stated = take_comment(r)
        if value.checked_type is None:
            value.checked_type = stated


def _call_of_constructor(r: Reader, value: ast.Expr) -> ast.Expr:
    """A constructor without fields is its value: ``Nil`` is ``Nil()``."""
    if isinstance(value, ast.Constructor) and r.constructors[value.name][1] == 0:
        call = ast.Call(value, (), checked_type=value.checked_type, place=value.place)
        value.checked_type = None
        return call
    return value


def _projection(r: Reader, value: ast.Expr, start: int) -> ast.Expr:
    digits = r.lex.text[1:].strip()
    if len(digits) > 10 or int(digits) > _MAX_INDEX:
        r.lex.fail(f"an index up to {_MAX_INDEX}")
    r.lex.advance()
    return ast.TupleGetItem(value, int(digits), place=r.lex.place(start))


def _call(r: Reader, callee: ast.Expr, start: int) -> Step:
    lex = r.lex
    place = lex.place(start)
    lex.advance()
    args: list[ast.Expr] = []
    attrs = None
    while lex.kind != ")":
        if at_attribute(r):
            attrs = call_attributes(r)
            break
        attrs = metadata_attributes(r)
        if attrs is not None:
            lex.accept(",")
            break
        arg = _plain_argument(r)
        args.append((yield expression(r)) if arg is None else arg)
        if not lex.accept(","):
            break
    lex.expect(")", "',' or ')'")
    return ast.Call(callee, tuple(args), attrs, place=place)


def _plain_argument(r: Reader) -> ast.Expr | None:
    """Read an argument that is a name or a number alone, as most are; None for anything else."""
    lex = r.lex
    kind = lex.kind
    if kind == "graph":
        value = r.scope.numbers.get(lex.text)
    elif kind == "local":
        value = r.scope.find(lex.text[1:])
    elif kind == "number" and lex.follows(_END_OF_ARGUMENT):
        value = SIMPLE[kind](r)
        _note_type(r, value)
        return value
    else:
        return None
    if value is None or lex.source[lex.end : lex.end + 1] not in (",", ")"):
        return None
    lex.advance()
    return value


def _tuple(r: Reader) -> Step:
    """Read a tuple, ``[a, b]`` up to version 0.0.4, or one expression in parentheses."""
    lex = r.lex
    place = lex.place(lex.start)
    groups = lex.advance() == "("
    fields: list[ast.Expr] = []
    for _ in lex.items(")" if groups else "]"):
        value = _plain_argument(r)
        fields.append((yield expression(r)) if value is None else value)
    if groups and len(fields) == 1 and not lex.trailing_comma:
        return _call_of_constructor(r, fields[0])
    return ast.Tuple(tuple(fields), place=place)


def block(r: Reader) -> Step:
    """Read ``{ ... }``, an expression in a scope of its own."""
    r.lex.expect("{")
    value = yield expression(r)
    r.lex.expect("}", "';' or '}'")
    return value


_BRACKETS: dict[str, Callable[[Reader], Step]] = {"(": _tuple, "[": _tuple, "{": block}


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
    constructor = ast.Constructor(name, known[0], place=lex.place(start))
    return ast.PatternConstructor(constructor, patterns)


def _patterns(r: Reader, depth: int) -> tuple[ast.Pattern, ...]:
    r.lex.advance()
    return tuple([read_pattern(r, depth + 1) for _ in r.lex.items(")")])


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
    branches: list[tuple[ast.Location, ast.Expr, ast.Expr]] = []
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
    for _ in lex.items("}"):
        mark = r.scope.mark()
        pattern = read_pattern(r)
        lex.expect("=>", "'=>' and what the arm gives")
        body = yield (block(r) if lex.kind == "{" else expression(r))
        clauses.append(ast.Clause(pattern, body))
        r.scope.restore(mark)
    return ast.Match(value, tuple(clauses), complete, place=place)


def _reference(node: Callable[..., ast.Expr], count: int) -> Callable[[Reader], Step]:
    """Return what reads ``ref(value)`` and the like, with so many arguments."""

    def read(r: Reader) -> Step:
        lex = r.lex
        place = lex.place(lex.start)
        lex.advance()
        args: list[ast.Expr] = []
        for i in range(count):
            lex.expect("," if i else "(")
            args.append((yield expression(r)))
        lex.accept(",")
        lex.expect(")")
        return node(*args, place=place)

    return read


COMPOUND: dict[str, Callable[[Reader], Step]] = {
    "fn": _fn,
    "if": _if,
    "match": _match,
    "match?": _match,
    "ref": _reference(ast.RefCreate, 1),
    "ref_read": _reference(ast.RefRead, 1),
    "ref_write": _reference(ast.RefWrite, 2),
}
"""How expressions that begin with a word are read."""
