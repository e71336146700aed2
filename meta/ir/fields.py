"""The kinds of fields that a node of a program has: how each prints, parses, compares, is checked.

A node kind declares its fields with these (`node.py`). A new kind of field is a class here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, Protocol

from meta.base.registry import nearest
from meta.ir.lexer import Cursor
from meta.ir.literals import is_literal, literal_text
from meta.ir.names import name_text, quote
from meta.ir.type_parser import read_int, read_name, read_type
from meta.ir.types import DataType, Type


class NodePrinter(Protocol):
    """What fields print themselves with: `printer.py`."""

    def expr(self, expr: Any, depth: int = 0, /) -> str: ...
    def typed(self, var: Any, /) -> str: ...


class NodeParser(Protocol):
    """What fields read themselves with: `parser.py`."""

    cursor: Cursor

    def atom(self) -> Any: ...
    def argument(self) -> Any: ...
    def literal(self) -> Any: ...
    def binder(self) -> Any: ...
    def block(self, keyword: str, /) -> Any: ...


class NodeWords(Protocol):
    """What fields add their content to: `structural.py`."""

    def add(self, word: str, /) -> None: ...
    def atom(self, atom: Any, /) -> str: ...
    def bind(self, var: Any, /) -> None: ...
    def block(self, block: Any, /) -> None: ...


class NodeVerifier(Protocol):
    """What fields and nodes check themselves with: `verify.py`."""

    typed: bool

    def fail(self, what: str, **details: Any) -> NoReturn: ...
    def show(self, atom: Any, /) -> str: ...
    def atom(self, atom: Any, role: str, /) -> None: ...
    def argument(self, argument: Any, role: str, /) -> None: ...
    def bind(self, var: Any, /) -> None: ...
    def block(self, block: Any, /) -> None: ...
    def call(self, callee: Any, args: Any, /) -> None: ...
    def type_of(self, expr: Any, /) -> Type | None: ...
    def check_type(self, type_: Type | None, /) -> None: ...
    def declared(self, found: Type | None, /) -> None: ...
    def fits(self, expected: Type | None, found: Type | None, what: str, /) -> None: ...
    def defined(self, type_: DataType, /) -> Any: ...


class NodeField(ABC):
    """One field of a node kind. Each method gets the field's value in a node, or returns it.

    ``holds``: the Python type of its values.
    """

    holds: ClassVar[type] = object

    @abstractmethod
    def text(self, value: Any, printer: NodePrinter, depth: int) -> str:
        """Return the program text; ``depth``: how many expressions are around it."""

    @abstractmethod
    def read(self, parser: NodeParser) -> Any:
        """Read what `text` wrote."""

    def words(self, value: Any, words: NodeWords) -> None:
        """Add what is compared. The words of two values are the same exactly if these are."""
        words.add(str(value))

    def check(self, value: Any, verifier: NodeVerifier) -> None:
        """Raise IRError for what no node of the kind may hold."""
        if not isinstance(value, self.holds):
            verifier.fail(f"a field is a {type(value).__name__}", expected=self.holds.__name__)


@dataclass(frozen=True)
class Atom(NodeField):
    """An atom. ``role`` names it in errors."""

    role: str

    def text(self, value: Any, printer: NodePrinter, depth: int) -> str:
        return printer.expr(value, depth)

    def read(self, parser: NodeParser) -> Any:
        return parser.atom()

    def words(self, value: Any, words: NodeWords) -> None:
        words.add(words.atom(value))

    def check(self, value: Any, verifier: NodeVerifier) -> None:
        verifier.atom(value, self.role)


@dataclass(frozen=True)
class Atoms(Atom):
    """A tuple of atoms: ``(%a, %b)``. An error names ``role`` and the number."""

    def text(self, value: Any, printer: NodePrinter, depth: int) -> str:
        return f"({', '.join([printer.expr(v, depth) for v in value])})"

    def read(self, parser: NodeParser) -> Any:
        return parser.cursor.items(parser.atom)

    def words(self, value: Any, words: NodeWords) -> None:
        words.add(str(len(value)))
        for atom in value:
            words.add(words.atom(atom))

    def check(self, value: Any, verifier: NodeVerifier) -> None:
        for i, atom in enumerate(value):
            verifier.atom(atom, f"{self.role} {i}")


class Arguments(Atoms):
    """A tuple of atoms and literals: ``(%a, 1)``."""

    def read(self, parser: NodeParser) -> Any:
        return parser.cursor.items(parser.argument)

    def check(self, value: Any, verifier: NodeVerifier) -> None:
        for i, argument in enumerate(value):
            verifier.argument(argument, f"{self.role} {i}")


@dataclass(frozen=True)
class Word(NodeField):
    """The word with which the node's text begins: one of several."""

    words_of_kind: Collection[str]
    holds: ClassVar[type] = str

    def text(self, value: Any, printer: NodePrinter, depth: int) -> str:
        return str(value)

    def read(self, parser: NodeParser) -> Any:
        return parser.cursor.advance()

    def check(self, value: Any, verifier: NodeVerifier) -> None:
        if value not in self.words_of_kind:
            verifier.fail(f"{value!r} is no primitive", hint=nearest(value, self.words_of_kind))


class Details(NodeField):
    """What the program fixes, at most a name and a number: `` Cons.0``."""

    holds: ClassVar[type] = tuple

    def text(self, value: Any, printer: NodePrinter, depth: int) -> str:
        return details_text(value)

    def read(self, parser: NodeParser) -> Any:
        if parser.cursor.kind == "(":
            return ()
        name = read_name(parser.cursor, "a name or '('")
        return (name, Index("a number").read(parser)) if parser.cursor.accept(".") else (name,)

    def words(self, value: Any, words: NodeWords) -> None:
        words.add(details_text(value))


def details_text(details: tuple[str | int, ...]) -> str:
    """Return details as text, after a space if there are any."""
    shown = [name_text(d) if isinstance(d, str) else str(d) for d in details]
    return f" {'.'.join(shown)}" if shown else ""


@dataclass(frozen=True)
class Index(NodeField):
    """A number, 0 or more. ``what`` it is, in errors."""

    what: str
    holds: ClassVar[type] = int

    def text(self, value: Any, printer: NodePrinter, depth: int) -> str:
        return str(value)

    def read(self, parser: NodeParser) -> Any:
        at, index = parser.cursor.start, read_int(parser.cursor)
        if index < 0:
            parser.cursor.fail(f"{self.what}, 0 or more", str(index), at=at)
        return index


class ResultType(NodeField):
    """The type of a result, which may be missing: `` -> float32[]``."""

    def text(self, value: Any, printer: NodePrinter, depth: int) -> str:
        return "" if value is None else f" -> {value}"

    def read(self, parser: NodeParser) -> Any:
        return read_type(parser.cursor) if parser.cursor.accept("->") else None

    def check(self, value: Any, verifier: NodeVerifier) -> None:
        verifier.check_type(value)


class Parameters(NodeField):
    """Variables that the node's blocks see: ``(%a: float32[2], %b)``."""

    def text(self, value: Any, printer: NodePrinter, depth: int) -> str:
        return f"({', '.join(map(printer.typed, value))})"

    def read(self, parser: NodeParser) -> Any:
        return parser.cursor.items(parser.binder)

    def words(self, value: Any, words: NodeWords) -> None:
        words.add(str(len(value)))
        for var in value:
            words.bind(var)

    def check(self, value: Any, verifier: NodeVerifier) -> None:
        for var in value:
            verifier.bind(var)


class Attributes(NodeField):
    """Literals and global names by name: `` attrs(rate=0.5, bwd=@f_bwd)``, nothing where there are
    none.
    """

    def text(self, value: Any, printer: NodePrinter, depth: int) -> str:
        shown = [
            f"{name_text(k)}={printer.expr(v) if hasattr(v, 'spec') else literal_text(v)}"
            for k, v in value.items()
        ]
        return f" attrs({', '.join(shown)})" if shown else ""

    def read(self, parser: NodeParser) -> Any:
        found: dict[str, Any] = {}
        if parser.cursor.accept_name("attrs"):
            parser.cursor.items(lambda: self._one(parser, found))
        return found

    def _one(self, parser: NodeParser, found: dict[str, Any]) -> None:
        cursor, at = parser.cursor, parser.cursor.start
        key = read_name(cursor, "an attribute's name")
        if key in found:
            cursor.fail("attributes with different names", repr(key), at=at)
        cursor.expect("=")
        found[key] = parser.atom() if cursor.kind == "global" else parser.literal()

    def words(self, value: Any, words: NodeWords) -> None:
        words.add(str(len(value)))
        for key in sorted(value):
            item = value[key]
            shown = words.atom(item) if hasattr(item, "spec") else literal_text(item)
            words.add(f"{quote(key)}={shown}")

    def check(self, value: Any, verifier: NodeVerifier) -> None:
        for key, item in value.items():
            if hasattr(item, "name") and hasattr(item, "spec"):
                verifier.atom(item, f"the attribute {key!r}")
            elif not isinstance(key, str) or not is_literal(item):
                verifier.fail(f"the attribute {key!r} is not a literal", expected="name=literal")


@dataclass(frozen=True)
class Body(NodeField):
    """A block: ``{ ... yield %x }``. ``keyword`` stands before its result."""

    keyword: str = "yield"

    def text(self, value: Any, printer: NodePrinter, depth: int) -> str:
        return "{"  # the first line; the printer goes on with the block

    def read(self, parser: NodeParser) -> Any:
        return parser.block(self.keyword)

    def words(self, value: Any, words: NodeWords) -> None:
        words.block(value)

    def check(self, value: Any, verifier: NodeVerifier) -> None:
        verifier.block(value)
