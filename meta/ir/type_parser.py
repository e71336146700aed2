"""Reads types, the definitions of data types, constants, and what is about data values and
references.

Types are ``float32[3, 2*n, ?]``, ``(A, B)``, ``(A,)``, ``fn(A, B) -> R``, ``type List`` and
``ref(A)``; a definition is ``type List { Nil() Cons(A, type List) }``.
"""

from __future__ import annotations

from collections.abc import Callable

from meta.base.dtype import DTYPES, is_real
from meta.base.registry import nearest
from meta.ir.constants import from_values
from meta.ir.dims import UNKNOWN, Dim, SymbolicDim, is_quotient
from meta.ir.expr import (
    Constant,
    Construct,
    ConstructorDefinition,
    Expr,
    Fail,
    GetField,
    IsVariant,
    MakeRef,
    ReadRef,
    TypeDefinition,
    WriteRef,
)
from meta.ir.lexer import Cursor
from meta.ir.literals import MAX_NESTING
from meta.ir.quoting import is_identifier
from meta.ir.types import DataType, FuncType, RefType, TensorType, TupleType, Type

MAX_DIGITS = 100
"""More digits are refused: reading a decimal number takes quadratic time."""


def read_type(cursor: Cursor, depth: int = 0) -> Type:
    """Read one type."""
    if depth > MAX_NESTING:
        cursor.fail(f"types nested at most {MAX_NESTING} deep")
    if cursor.kind == "(":
        return TupleType(_read_list(cursor, depth))
    if cursor.accept_name("fn"):
        params = _read_list(cursor, depth)
        cursor.expect("->")
        return FuncType(params, read_type(cursor, depth + 1))
    if cursor.accept_name("type"):
        return DataType(read_name(cursor, "a data type's name"))
    if cursor.accept_name("ref"):
        cursor.expect("(")
        value = read_type(cursor, depth + 1)
        cursor.expect(")")
        return RefType(value)
    return read_tensor_type(cursor)


def _read_list(cursor: Cursor, depth: int) -> tuple[Type, ...]:
    cursor.expect("(")
    types: list[Type] = []
    while not cursor.accept(")"):
        types.append(read_type(cursor, depth + 1))
        if not cursor.accept(","):
            cursor.expect(")", "',' or ')'")
            break
    return tuple(types)


def read_name(cursor: Cursor, what: str) -> str:
    """Read a name, which is quoted if it is no identifier."""
    at = cursor.start
    if cursor.kind == "string":
        return cursor.unquoted(cursor.advance(), at)
    if cursor.kind != "name" or not is_identifier(cursor.text):
        cursor.fail(what)
    return cursor.advance()


def read_type_definition(cursor: Cursor) -> TypeDefinition:
    """Read a data type's definition from its name on."""
    name = read_name(cursor, "a data type's name")
    cursor.expect("{")
    constructors: dict[str, ConstructorDefinition] = {}
    while not cursor.accept("}"):
        at, constructor = cursor.start, read_name(cursor, "a constructor or '}'")
        if constructor in constructors:
            cursor.fail("constructors with different names", repr(constructor), at=at)
        fields = _read_list(cursor, 0)
        constructors[constructor] = ConstructorDefinition(constructor, fields)
    return TypeDefinition(name, tuple(constructors.values()))


def read_tensor_type(cursor: Cursor) -> TensorType:
    """Read ``dtype[dim, ...]``."""
    if cursor.kind != "name":
        cursor.fail("a type")
    if cursor.text not in DTYPES:
        cursor.fail("a dtype", hint=nearest(cursor.text, DTYPES))
    dtype = cursor.advance()
    cursor.expect("[")
    shape: list[Dim] = []
    while not cursor.accept("]"):
        shape.append(_read_dim(cursor))
        if not cursor.accept(","):
            cursor.expect("]", "',' or ']'")
            break
    return TensorType(tuple(shape), dtype)


def _read_dim(cursor: Cursor) -> Dim:
    at = cursor.start
    if cursor.accept("?"):
        return UNKNOWN
    dim = read_sum(cursor)
    if isinstance(dim, int) and not 0 <= dim < 1 << 63:
        cursor.fail("a dimension from 0 to 2**63 - 1", str(dim), at=at)
    return dim


def read_sum(cursor: Cursor, depth: int = 0) -> int | SymbolicDim:
    """Read a number or a symbolic dimension: ``n``, ``4*n + 1``, ``((n + 1) // 2) - 1``."""
    total = -_read_product(cursor, depth) if cursor.accept("-") else _read_product(cursor, depth)
    while True:
        if cursor.accept("+"):
            total = total + _read_product(cursor, depth)
        elif cursor.accept("-"):
            total = total - _read_product(cursor, depth)
        else:
            return total


def _read_product(cursor: Cursor, depth: int) -> int | SymbolicDim:
    result = _read_factor(cursor, depth)
    while cursor.accept("*"):
        result = result * _read_factor(cursor, depth)
    return result


def _read_factor(cursor: Cursor, depth: int) -> int | SymbolicDim:
    at = cursor.start
    if cursor.kind == "name":
        return SymbolicDim(cursor.advance())
    if cursor.kind == "string":
        return SymbolicDim(cursor.unquoted(cursor.advance(), at))
    if cursor.kind == "(":
        return _read_quotient(cursor, depth + 1)
    if cursor.kind != "number":
        cursor.fail("a dimension: a number, a name, a quotient or '?'")
    return read_int(cursor)


def _read_quotient(cursor: Cursor, depth: int) -> int | SymbolicDim:
    """Read ``((sum) // number)``."""
    if depth > MAX_NESTING:
        cursor.fail(f"quotients nested at most {MAX_NESTING} deep")
    at = cursor.start
    cursor.expect("(")
    cursor.expect("(")
    numerator = read_sum(cursor, depth)
    cursor.expect(")")
    cursor.expect("//")
    divisor = read_int(cursor)
    cursor.expect(")")
    if divisor < 1 or isinstance(numerator, int) or not is_quotient(numerator // divisor):
        cursor.fail("a quotient in lowest terms", at=at)
    return numerator // divisor


def read_int(cursor: Cursor) -> int:
    """Read an integer."""
    text = cursor.text
    if cursor.kind != "number" or not text.lstrip("-").isdigit():
        cursor.fail("an integer")
    if len(text) > MAX_DIGITS:
        cursor.fail(f"a number of at most {MAX_DIGITS} digits")
    return int(cursor.advance())


def read_static_type(cursor: Cursor) -> TensorType:
    """Read a tensor type without symbolic or unknown dimensions."""
    at, found = cursor.start, read_tensor_type(cursor)
    if not found.is_static:
        cursor.fail("a type without unknown dimensions", str(found), at=at)
    return found


def read_constant(cursor: Cursor) -> Constant:
    """Read ``float32[2] [1.0, 2.5]`` or ``float32[] 1.0``."""
    at, found = cursor.start, read_static_type(cursor)
    values: list[float | int | bool] = []
    if not found.shape:
        values.append(_read_element(cursor, found.dtype))
    else:
        cursor.expect("[")
        while not cursor.accept("]"):
            values.append(_read_element(cursor, found.dtype))
            if not cursor.accept(","):
                cursor.expect("]", "',' or ']'")
                break
    try:
        return Constant(from_values(values, found.static_shape, found.dtype))
    except ValueError as error:
        cursor.fail(f"a constant of type {found}", str(error), at=at)


def _read_element(cursor: Cursor, dtype: str) -> float | int | bool:
    if dtype == "bool":
        if cursor.text not in ("True", "False"):
            cursor.fail("True or False")
        return cursor.advance() == "True"
    if not is_real(dtype):
        return read_int(cursor)
    if cursor.kind != "number" and cursor.text not in ("nan", "inf"):
        cursor.fail("a number")
    return float(cursor.advance())


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
