"""What a node of a program is, and how a kind of expression is declared::

    @node("{value}.{index}")
    @dataclass(eq=False, slots=True)
    class TupleGetItem(Expr):
        value: Annotated[Expr, Atom("the tuple")]
        index: Annotated[int, Index("a field's index")]

Printer, parser, comparison, traversals, verifier and pictures follow from the fields (`fields.py`)
and the form of the text. The form begins with a word that no other kind has, or with an atom and
punctuation. Without a form, `printer.py` and `parser.py` know the kind. What computes with values
that are no tensors is an entry of `primitives.py`, without a kind of its own.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from enum import Enum
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, TypeVar, get_type_hints

from meta.ir.fields import Atom, Atoms, Body, NodeField, NodeVerifier, Parameters, ResultType, Word
from meta.ir.types import Type


class Effect(Enum):
    """What evaluating a node does beside computing its value from its operands.

    >>> source = 'fn(%x: float32[3]) { %y = fail "why"() -> float32[3] %z = exp(%x) return %y }'
    >>> fails, computes = meta.ir.parse_function(source).body.bindings
    >>> fails.value.effect, computes.value.effect
    (<Effect.FAIL: 'ends the program'>, <Effect.NONE: 'none'>)
    """

    NONE = "none"
    NEW = "makes a cell, another one each time"
    READ = "reads what cells hold"
    WRITE = "writes to a cell, its first operand"
    FAIL = "ends the program"


class NamedField(NamedTuple):
    """A field of a node kind, by its name."""

    name: str
    field: NodeField


class Text(NamedTuple):
    """What stands between fields in program text, and its tokens."""

    text: str
    tokens: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class NodeSpec:
    """What a node kind declares, as the traversals need it.

    Attributes
    ----------
    fields: in the order of the text if there is a form. names: in the class's order.
    form: the text. effect: what evaluation does. opaque: whether the value and the operands may be
    one memory, which passes do not follow further.
    is_atom: whether a node of the kind may stand as an argument.
    uses: returns the atoms and literals that a node uses; None for an atom that uses none.
    atoms: the names of these fields, and whether each holds a tuple.
    blocks: the names of the fields that are blocks. binds: the name of the parameters, if any.
    types: the names of the fields that are types.
    """

    fields: tuple[NamedField, ...] = ()
    names: tuple[str, ...] = ()
    form: tuple[NamedField | Text, ...] = ()
    effect: Effect = Effect.NONE
    opaque: bool = False
    is_atom: bool = False
    uses: Callable[[Any], tuple[Any, ...]] | None = None
    atoms: tuple[tuple[str, bool], ...] = ()
    blocks: tuple[str, ...] = ()
    binds: str | None = None
    types: tuple[str, ...] = ()


class Node:
    """Whatever is part of a program; ``str(node)`` is its program text.

    >>> module = meta.ir.parse("func @main(%x: float32[3]) -> float32[3] { return %x }")
    >>> isinstance(module, meta.ir.Node)
    True
    >>> print(module.main.body)
    {
      yield %x
    }
    """

    __slots__ = ()
    spec: ClassVar[NodeSpec] = NodeSpec()
    # The printer and the pictures set themselves, because they import this file.
    to_text: ClassVar[Callable[[Node], str]] = repr
    to_html: ClassVar[Callable[[Node], str]] = repr

    def __str__(self) -> str:
        return Node.to_text(self)

    def _repr_html_(self) -> str:
        return Node.to_html(self)


class Expr(Node):
    """Base class of what has a value; one that declares nothing is an atom without operands.

    >>> x = meta.ir.Var("x", meta.ir.parse_type("float32[3]"))
    >>> isinstance(x, meta.ir.Expr), x.effect, list(meta.ir.operands(x)) == [x]
    (True, <Effect.NONE: 'none'>, True)
    """

    __slots__ = ()
    spec: ClassVar[NodeSpec] = NodeSpec(is_atom=True)

    @property
    def effect(self) -> Effect:
        """What evaluation does beside computing the value."""
        return self.spec.effect

    @property
    def opaque(self) -> bool:
        """Whether the value and the operands may be one memory."""
        return self.spec.opaque

    @property
    def stored(self) -> tuple[Expr, ...]:
        """The operands that a value in memory holds from then on."""
        return ()

    def type_by(self, type_of: Callable[[Expr], Type | None]) -> Type | None:
        """Return the type that follows from the operands' types; None where nothing says it."""
        found: Type | None = getattr(self, "type", None)
        return found

    def verify(self, verifier: NodeVerifier) -> None:
        """Check what relates fields to each other; each by itself has been checked."""


def type_of(expr: Expr) -> Type | None:
    """Return an expression's type, or None where an operator or an untyped variable decides it.

    >>> x = meta.ir.Var("x", meta.ir.parse_type("float32[3]"))
    >>> print(meta.ir.type_of(meta.ir.Tuple((x, x))))
    (float32[3], float32[3])
    >>> print(meta.ir.type_of(meta.ir.Call(meta.op.exp, (x,))))  # see `meta.passes.infer_type`
    None
    """
    return expr.type_by(type_of)


WORDS: dict[str, type[Expr]] = {}
"""The kinds whose text begins with a word, by that word."""
SUFFIXES: dict[str, type[Expr]] = {}
"""The kinds whose text begins with an atom, by the punctuation that follows."""

K = TypeVar("K", bound=type[Expr])
_TOKEN = re.compile(r"->|\w+|[^\w\s]")


def node(
    form: str = "", *, effect: Effect = Effect.NONE, opaque: bool = False, is_atom: bool = False
) -> Callable[[K], K]:
    """Return a decorator that declares a node kind; see `NodeSpec` for the arguments.

    It raises TypeError for a field that is not declared, a form that leaves one out or in which an
    operand follows parameters, and a form that begins as that of another kind.
    """

    def declare(kind: K) -> K:
        fields = _named_fields(kind)
        shown = _form(kind, form, fields)
        atoms = tuple((p.name, isinstance(p.field, Atoms)) for p in _fields_of_kind(fields, Atom))
        kind.spec = NodeSpec(
            tuple(p for p in shown if isinstance(p, NamedField)) or fields,
            tuple(p.name for p in fields),
            shown,
            effect,
            opaque,
            is_atom,
            _uses(atoms),
            atoms,
            tuple(p.name for p in _fields_of_kind(fields, Body)),
            next((p.name for p in _fields_of_kind(fields, Parameters)), None),
            tuple(p.name for p in _fields_of_kind(fields, ResultType)),
        )
        if shown:
            table, firsts = _leading_tokens(shown)
            for first in firsts:
                if first in table:
                    raise TypeError(f"{table[first].__name__} begins with {first!r} too")
                table[first] = kind
        return kind

    return declare


def _leading_tokens(
    form: tuple[NamedField | Text, ...],
) -> tuple[dict[str, type[Expr]], Iterable[str]]:
    """Return the table for a form, and the words or the punctuation by which it is found there."""
    match form[0]:
        case NamedField(_, Word(words)):
            return WORDS, words
        case NamedField():
            following = form[1]
            assert isinstance(following, Text)
            return SUFFIXES, following.tokens[:1]
        case Text(_, tokens):
            return WORDS, tokens[:1]


def _named_fields(kind: type[Expr]) -> tuple[NamedField, ...]:
    hints = get_type_hints(kind, include_extras=True)
    found = []
    for name in (f.name for f in dataclasses.fields(kind)):  # type: ignore[arg-type]  # it is one
        declared = [m for m in getattr(hints[name], "__metadata__", ()) if isinstance(m, NodeField)]
        if len(declared) != 1:
            raise TypeError(f"{kind.__name__}.{name} does not say what kind of field it is")
        found.append(NamedField(name, declared[0]))
    return tuple(found)


def _fields_of_kind(fields: tuple[NamedField, ...], field: type[NodeField]) -> list[NamedField]:
    return [p for p in fields if isinstance(p.field, field)]


def _form(
    kind: type[Expr], form: str, fields: tuple[NamedField, ...]
) -> tuple[NamedField | Text, ...]:
    """Return the pieces of a form: every second one is a field."""
    by_name = {part.name: part for part in fields}
    pieces = re.split(r"\{(\w+)\}", form)
    if form and sorted(pieces[1::2]) != sorted(by_name):
        raise TypeError(f"the form of {kind.__name__} does not have each field once: {form!r}")
    bound = False
    for name in pieces[1::2]:
        bound |= isinstance(by_name[name].field, Parameters)
        if bound and isinstance(by_name[name].field, Atom):
            raise TypeError(f"the parameters of {kind.__name__} stand before its operand {name!r}")
    return tuple(
        by_name[piece] if i % 2 else Text(piece, tuple(_TOKEN.findall(piece)))
        for i, piece in enumerate(pieces)
        if piece
    )


def _uses(atoms: tuple[tuple[str, bool], ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function from a node to its atoms and literals, in order: passes call it often."""
    getters = [(attrgetter(name), is_tuple) for name, is_tuple in atoms]
    match getters:
        case []:
            return lambda node: ()
        case [(one, False)]:
            return lambda node: (one(node),)
        case [(rest, True)]:
            return rest
        case [(one, False), (rest, True)]:
            return lambda node: (one(node), *rest(node))
    return lambda node: tuple(
        item for get, is_tuple in getters for item in (get(node) if is_tuple else (get(node),))
    )
