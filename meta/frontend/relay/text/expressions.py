"""Reads expressions: bindings, operators between values, calls, projections, tuples, lists.

Functions, branches and matches are in `control.py`. See `reader.py` for why these are generators.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from meta.frontend.relay import ast
from meta.frontend.relay.text.atoms import SIMPLE, declare, read_word
from meta.frontend.relay.text.attributes import at_attribute, call_attributes, whole_attributes
from meta.frontend.relay.text.reader import Reader, Step
from meta.frontend.relay.text.types import take_comment

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

COMPOUND: dict[str, Callable[[Reader], Step]] = {}
"""How expressions that begin with a word are read; `control.py` fills it."""

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
            var = _let(r)
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


def _let(r: Reader) -> ast.Var:
    """Read ``let %x: T =``. The variable is in scope in its own value."""
    r.lex.advance()
    r.lex.accept_name("mut")
    var = declare(r)
    r.lex.expect("=", "'=' and the value of the variable")
    return var


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
    if isinstance(value, ast.Constructor) and r.constructors[value.name].arity == 0:
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
        attrs = whole_attributes(r)
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
    """Read an argument that is a name or a number alone, which most are; None if there is something
    else.
    """
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


def _parentheses(r: Reader) -> Step:
    """Read a tuple, or one expression."""
    lex = r.lex
    place = lex.place(lex.start)
    lex.advance()
    fields: list[ast.Expr] = []
    comma = False
    while lex.kind != ")":
        value = _plain_argument(r)
        fields.append((yield expression(r)) if value is None else value)
        comma = lex.accept(",")
        if not comma:
            break
    lex.expect(")", "',' or ')'")
    if len(fields) == 1 and not comma:
        return _call_of_constructor(r, fields[0])
    return ast.Tuple(tuple(fields), place=place)


def _list(r: Reader) -> Step:
    """Read ``[a, b]``, which up to version 0.0.4 is a tuple."""
    lex = r.lex
    place = lex.place(lex.start)
    lex.advance()
    fields: list[ast.Expr] = []
    while lex.kind != "]":
        fields.append((yield expression(r)))
        if not lex.accept(","):
            break
    lex.expect("]", "',' or ']'")
    return ast.Tuple(tuple(fields), place=place)


def block(r: Reader) -> Step:
    """Read ``{ ... }``, an expression in a scope of its own."""
    r.lex.expect("{")
    value = yield expression(r)
    r.lex.expect("}", "';' or '}'")
    return value


_BRACKETS: dict[str, Callable[[Reader], Step]] = {"(": _parentheses, "[": _list, "{": block}
