"""Fields of nodes: how they are encoded, and what earlier versions named or encoded otherwise, as
tables.

An encoding follows from the field's type, never from the looks of the text: "0" is null for an
object and zero for a number. Missing fields need no entry: they are null, or the default of the
operator table. To read another old form, add a row.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Callable
from typing import Any

OBJECT, NDARRAY, STRING = "object", "ndarray", "string"
"""Encodings that refer to something: a node, an array of the file, a node unless it is the text."""

INT, BOOL, DOUBLE, DTYPE = "int", "bool", "double", "dtype"
"""Encodings that are the value itself."""

_ENCODINGS = {
    **dict.fromkeys(("int", "int32_t", "int64_t", "uint64_t"), INT),
    **dict.fromkeys(("String", "std::string"), STRING),
    "bool": BOOL,
    "double": DOUBLE,
    "DataType": DTYPE,
}
_INTEGER = re.compile(r"-?[0-9]{1,20}")
_DOUBLE = re.compile(r"-?(?:[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,4})?|inf|nan)|-nan")
_NAMED = r"(?:custom\[[^\]\s]{1,60}\]|[a-z][a-z0-9_]{0,40})"
_SCALARS: dict[str, tuple[re.Pattern[str], str, Callable[[str], Any]]] = {
    **dict.fromkeys((INT, NDARRAY), (_INTEGER, "integer", int)),
    BOOL: (re.compile(r"[01]"), "boolean", lambda text: text == "1"),
    DOUBLE: (_DOUBLE, "number", float),
    DTYPE: (re.compile(rf"(?:{_NAMED}[0-9]{{0,4}}(?:x[0-9]{{1,4}})?)?"), "dtype", str),
}
"""By encoding: the form of the text, what an error calls the value, and what makes it."""
_LONGEST = 400  # the longest double without an exponent has 309 digits


class BadField(Exception):
    """A field whose text is no value of its type: what is wrong, without the place."""


def encoding(cpp_type: str) -> str:
    """Return the encoding of an operator's attribute of a C++ type."""
    return _ENCODINGS.get(cpp_type, OBJECT)


def scalar(encoding: str, text: str) -> Any:
    """Read an integer of at most 64 bits, "0" or "1" for a bool, a number, "inf" and "nan" among
    them, or a dtype, of which "" and "void" are none.
    """
    form, what, make = _SCALARS[encoding]
    if len(text) > _LONGEST or not form.fullmatch(text):
        raise BadField(f"{text[:40]!r} is no {what}")
    value = make(text)
    if make is int and not -(2**63) <= value < 2**64:
        raise BadField(f"{text} has more than 64 bits")
    return "" if value == "void" else value


def decode_base64(text: str, what: str) -> bytes:
    """Return what a base64 text encodes. Blanks and any other foreign character are refused."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadField(f"{what} is no base64") from None


def length_prefixed(text: str, what: str, width: int = 1) -> bytes:
    """Return the items, of ``width`` bytes, that follow their 64-bit number in a base64 text."""
    data = decode_base64(text, what)
    if len(data) < 8 or struct.unpack_from("<Q", data)[0] * width != len(data) - 8:
        raise BadField(f"{what} whose length does not agree")
    return data[8:]


# Until v0.6; TVM's tensor expressions had no prefix, and what it shares with Relay had Relay's.
_RELAY_NO_MORE = (
    "Op TypeVar GlobalTypeVar TupleType FuncType IncompleteType TypeRelation TypeCall SourceName "
    "Span GlobalVar"
)
_COMPUTED = (
    "Add Sub Mul Div Mod FloorDiv FloorMod Min Max Cast Select Let Call EQ NE LT LE GT GE And Or "
    "Not"
)
COMPUTED = tuple(f"tir.{name}" for name in _COMPUTED.split())
"""TVM's tensor expressions that compute a number."""

_TENSOR_EXPRESSIONS = f"Any SizeVar StringImm {_COMPUTED}"
_RENAMED = {
    **{f"relay.{name}": name for name in _RELAY_NO_MORE.split()},
    **{name: f"tir.{name}" for name in _TENSOR_EXPRESSIONS.split()},
    "relay.Module": "IRModule",
    "Variable": "tir.Var",
    "StrMap": "Map",
    "UIntImm": "IntImm",
    "SEScope": "VirtualDevice",  # v0.8
}

_TYPES_BEFORE = {
    ("relay.attrs.TopkAttrs", "k"): ((0, 7), "int"),
    ("relay.attrs.NonMaximumSuppressionAttrs", "max_output_size"): ((0, 7), "int"),
    ("relay.attrs.GetValidCountsAttrs", "score_threshold"): ((0, 8), "double"),
}
FIRST_STABLE_VERSION = max(version for version, _ in _TYPES_BEFORE.values())
"""The first version in which all attributes have their present types."""


def type_key(key: str) -> str:
    """Return the present type key of a node."""
    return _RENAMED.get(key, key)


def field_type(key: str, name: str, version: tuple[int, int] | None, present: str) -> str:
    """Return the C++ type of an attribute in a version: a number may have become an object."""
    until, former = _TYPES_BEFORE.get((key, name), ((0, 0), present))
    return former if version is not None and version < until else present
