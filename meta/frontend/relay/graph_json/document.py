"""The outer form of TVM's JSON graphs (a list of nodes, the encoded arrays, the writer's version),
and fields of nodes: how they are encoded, and what earlier versions named or encoded otherwise.

Nothing here knows what a node means. Nodes are read one at a time, so that a large file shows its
progress and is refused at its first bad node. `Scanner` reads JSON with the scanner of the standard
library and refuses what that lets pass: keys that occur twice, NaN and infinities, numbers of any
length; and nesting without end is an error like the others.

An encoding follows from the field's type, never from the looks of the text: "0" is null for an
object and zero for a number. Missing fields need no entry: they are null, or the default of the
operator table. To read another old form, add a row.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from sys import intern
from typing import Any, NoReturn

from meta.base.progress import bar
from meta.frontend.relay.errors import RelayError

_BLANKS = re.compile(r"[ \t\n\r]*")
_MARKS = {mark: re.compile(rf"[ \t\n\r]*\{mark}[ \t\n\r]*") for mark in "[]{},:"}
_MAX_DIGITS = 30


class _BadJson(ValueError):
    """What is wrong with a value of the JSON, from inside the standard library's scanner."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise _BadJson(f"the key {twice[:80]!r} occurs twice in one object")
    return result


def _no_constant(name: str) -> NoReturn:
    raise _BadJson(f"{name} is no JSON")


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise _BadJson(f"a number of {len(digits)} digits")
    return int(digits)


def decode(data: bytes, source: str) -> str:
    """Return a file's text. Raises RelayError where it is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RelayError(
            "the text is not valid UTF-8", place=f"{source}, byte {error.start}"
        ) from None


def encode(text: str, source: str) -> bytes:
    """Return a text as UTF-8. Raises RelayError where it is not made of whole characters."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise RelayError(
            "the text holds half a character (a lone surrogate)",
            place=f"{source}, character {error.start}",
        ) from None


class Scanner:
    """Reads a JSON text from the front, value by value."""

    def __init__(self, text: str, source: str) -> None:
        self.text, self.source, self.position = text, source, 0
        self.decoder = json.JSONDecoder(
            object_pairs_hook=_object, parse_constant=_no_constant, parse_int=_integer
        )

    def fail(self, what: str, at: int | None = None, expected: str | None = None) -> NoReturn:
        """Raise RelayError with line and column."""
        at = self.position if at is None else at
        line = self.text.count("\n", 0, at) + 1
        column = at - self.text.rfind("\n", 0, at)
        raise RelayError(
            f"the JSON cannot be read: {what}",
            place=f"{self.source}:{line}:{column}",
            expected=expected,
        )

    def skip_blanks(self) -> None:
        """Go to the next character that is no blank."""
        found = _BLANKS.match(self.text, self.position)
        assert found is not None
        self.position = found.end()

    def take(self, character: str) -> bool:
        """Skip a character, and the blanks around it, if it is the next."""
        found = _MARKS[character].match(self.text, self.position)
        if found is None:
            self.skip_blanks()
            return False
        self.position = found.end()
        return True

    def expect(self, character: str) -> None:
        """Skip a character that has to be the next."""
        if not self.take(character):
            at_end = self.position >= len(self.text)
            self.fail("it ends here" if at_end else "an unexpected character", expected=character)

    def value(self) -> Any:
        """Read the value that begins here."""
        try:
            value, self.position = self.decoder.raw_decode(self.text, self.position)
        except json.JSONDecodeError as error:
            self.fail(error.msg, error.pos)
        except RecursionError:
            self.fail("brackets are nested too deeply")
        except _BadJson as error:
            self.fail(str(error))
        return value

    def key(self) -> str:
        """Read a key of an object, and the colon after it."""
        key = self.value()
        if not isinstance(key, str):
            self.fail("a key that is no string")
        self.expect(":")
        return key


PROGRESS_DELAY = 1.0
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})")
# Places in other files and of devices, which no part of reading asks for: most of a file's text.
_SKIPPED = frozenset({"span", "virtual_device_"})
_TEXTS = frozenset({"repr_str", "repr_b64", "global_key"})  # the last one until v0.6
_HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")
_NO_ATTRS: dict[str, str] = {}
_NO_DATA: list[int] = []
_EXECUTOR_KEYS = frozenset({"arg_nodes", "node_row_ptr", "heads"})
_EXECUTOR = {
    "what": "this is the JSON of a graph executor, a compiled model, and no Relay program",
    "hint": "give the Relay program that it was built from (tvm.ir.save_json or astext)",
}
_LATER = {
    "what": "this JSON was written by a TVM that has no Relay any more; its programs are Relax",
    "hint": "load it with that TVM and use meta.frontend.relax",
}


@dataclass(slots=True)
class JsonNode:
    """An object of the graph: its class, fields as text, and indices of an array's or map's items.

    ``keys``: of a map whose keys are all strings. ``encoded``: whether ``text`` is base64.
    """

    type_key: str
    attrs: dict[str, str]
    data: list[int]
    keys: list[str] | None = None
    text: str | None = None
    encoded: bool = False


@dataclass(slots=True)
class Document:
    """A JSON graph; ``root`` and references are indices into ``nodes``, the first is null."""

    source: str
    root: int = -1
    nodes: list[JsonNode] = field(default_factory=list)
    arrays: list[str] = field(default_factory=list)
    version: tuple[int, int] | None = None


def _fault(document: Document, what: str) -> NoReturn:
    raise RelayError(
        f"node {len(document.nodes)} is no node of a JSON graph: {what}", place=document.source
    )


def _check_types(document: Document, values: Iterable[object], kind: type, fault: str) -> None:
    for value in values:
        if type(value) is not kind:
            _fault(document, fault)


def _list(document: Document, member: str, content: Any, kind: type, fault: str) -> list[Any]:
    if not isinstance(content, list):
        _fault(document, f"{member!r} is no list")
    _check_types(document, content, kind, fault)
    return content


def _check_characters(document: Document, node: JsonNode) -> None:
    """Check that a node's strings are made of whole characters."""
    names = (*node.attrs, *(node.keys or ()))
    for value in (node.type_key, node.text or "", *names, *node.attrs.values()):
        try:
            value.encode()
        except UnicodeEncodeError:
            _fault(document, "a text that holds half a character (a lone surrogate)")


def _node(document: Document, value: Any) -> JsonNode:
    if not isinstance(value, dict):
        _fault(document, f"it is of type {type(value).__name__}")
    key = value.get("type_key")
    if not isinstance(key, str):
        if "op" in value and "inputs" in value:
            raise RelayError(**_EXECUTOR, place=document.source)
        _fault(document, "it has no 'type_key'")
    node = JsonNode(intern(key), _NO_ATTRS, _NO_DATA)
    for member, content in value.items():
        if member == "attrs":
            if not isinstance(content, dict):
                _fault(document, "'attrs' is no object")
            _check_types(document, content.values(), str, "an attribute that is no string")
            node.attrs = {intern(n): v for n, v in content.items() if n not in _SKIPPED}
        elif member == "data":
            node.data = _list(document, member, content, int, "'data' holds what is no number")
        elif member == "keys":
            node.keys = _list(document, member, content, str, "a key that is no string")
        elif member in _TEXTS:
            _check_types(document, (content,), str, "a text that is no string")
            node.text, node.encoded = content, member == "repr_b64"
    return node


def _read_nodes(document: Document, scanner: Scanner) -> None:
    scanner.expect("[")
    if scanner.take("]"):
        return
    escapes = _HALF_CHARACTER.search(scanner.text) is not None
    with bar(len(scanner.text), f"reading {document.source}", PROGRESS_DELAY) as progress:
        while True:
            node = _node(document, scanner.value())
            if escapes:
                _check_characters(document, node)
            document.nodes.append(node)
            if len(document.nodes) % 4096 == 0:
                progress.update(scanner.position - progress.n)
            if not scanner.take(","):
                break
    scanner.expect("]")


def _read_member(document: Document, scanner: Scanner, key: str) -> None:
    if key in _EXECUTOR_KEYS:
        raise RelayError(**_EXECUTOR, place=document.source)
    if key == "root_index":
        raise RelayError(**_LATER, place=document.source)
    if key == "nodes":
        _read_nodes(document, scanner)
        return
    value = scanner.value()
    if key == "root":
        if type(value) is not int:
            scanner.fail("'root' is no number")
        document.root = value
    elif key == "b64ndarrays":
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            scanner.fail("'b64ndarrays' is not a list of strings")
        document.arrays = value
    elif key == "attrs":
        stated = value.get("tvm_version") if isinstance(value, dict) else None
        found = _VERSION.match(stated) if isinstance(stated, str) else None
        document.version = (int(found[1]), int(found[2])) if found else None


def read_document(text: str, source: str) -> Document:
    """Read the outer form; RelayError for what is no JSON, no graph, or another program's."""
    if not text.isascii():
        encode(text, source)
    document, scanner = Document(source), Scanner(text, source)
    scanner.expect("{")
    seen: set[str] = set()
    if not scanner.take("}"):
        while True:
            key = scanner.key()
            if key in seen:
                scanner.fail(f"the key {key[:80]!r} occurs twice in one object")
            seen.add(key)
            _read_member(document, scanner, key)
            if not scanner.take(","):
                break
        scanner.expect("}")
    scanner.skip_blanks()
    if scanner.position < len(text):
        scanner.fail("text after its end")
    missing = sorted({"root", "nodes"} - seen)
    if missing:
        raise RelayError(
            f"this JSON is no Relay program: it has no {missing[0]!r}",
            found="the keys " + ", ".join(sorted(seen))[:200] if seen else "an empty object",
            place=source,
        )
    if not 0 <= document.root < len(document.nodes):
        raise RelayError(f"the root is node {document.root} of {len(document.nodes)}", place=source)
    return document


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
