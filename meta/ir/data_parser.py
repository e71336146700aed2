"""Reads what can be bound and is about data values and references, as `printer.py` describes it.

A form is a word and a function in `DATA_VALUES`. The words are no names of operators.
"""

from __future__ import annotations

from collections.abc import Callable

from meta.ir.expr import Construct, Expr, Fail, GetField, IsVariant, MakeRef, ReadRef, WriteRef
from meta.ir.lexer import Cursor
from meta.ir.type_parser import read_int, read_name, read_type
from meta.ir.types import DataType

ReadAtom = Callable[[], Expr]


def _construct(cursor: Cursor, atom: ReadAtom) -> Expr:
    type_ = DataType(read_name(cursor, "a data type's name"))
    cursor.expect(":")
    constructor = read_name(cursor, "a constructor")
    fields: list[Expr] = []
    cursor.expect("(")
    while not cursor.accept(")"):
        fields.append(atom())
        if not cursor.accept(","):
            cursor.expect(")", "',' or ')'")
            break
    return Construct(type_, constructor, tuple(fields))


def _is_variant(cursor: Cursor, atom: ReadAtom) -> Expr:
    constructor = read_name(cursor, "a constructor")
    return IsVariant(_only(cursor, atom), constructor)


def _get_field(cursor: Cursor, atom: ReadAtom) -> Expr:
    constructor = read_name(cursor, "a constructor")
    cursor.expect(".")
    at, index = cursor.start, read_int(cursor)
    if index < 0:
        cursor.fail("a field's index, 0 or more", str(index), at=at)
    value = _only(cursor, atom)
    cursor.expect("->")
    return GetField(value, constructor, index, read_type(cursor))


def _make_ref(cursor: Cursor, atom: ReadAtom) -> Expr:
    return MakeRef(_only(cursor, atom))


def _read_ref(cursor: Cursor, atom: ReadAtom) -> Expr:
    return ReadRef(_only(cursor, atom))


def _write_ref(cursor: Cursor, atom: ReadAtom) -> Expr:
    cursor.expect("(")
    ref = atom()
    cursor.expect(",")
    value = atom()
    cursor.expect(")")
    return WriteRef(ref, value)


def _fail(cursor: Cursor, _: ReadAtom) -> Expr:
    at = cursor.start
    message = cursor.unquoted(cursor.expect("string", "a message, a string"), at)
    cursor.expect("->")
    return Fail(message, read_type(cursor))


def _only(cursor: Cursor, atom: ReadAtom) -> Expr:
    cursor.expect("(")
    value = atom()
    cursor.expect(")")
    return value


DATA_VALUES: dict[str, Callable[[Cursor, ReadAtom], Expr]] = {
    "construct": _construct,
    "is_variant": _is_variant,
    "get_field": _get_field,
    "make_ref": _make_ref,
    "read_ref": _read_ref,
    "write_ref": _write_ref,
    "fail": _fail,
}
"""By the word that such a value begins with: what reads on from there."""
