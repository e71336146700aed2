"""What the parts of the parser share: the tokens, the names in scope, the metadata section at the
end of a text with references to it, ``meta[relay.Constant][0]``, and types: ``Tensor[(2, ?),
float32]``, ``fn (T) -> U``, ``List[A]``, ``(T, U)``.

Nothing of the parser calls itself along the program. What nests (blocks, arguments, functions,
branches) is parsed by generators that yield the generator of the part they need next, which `run`
drives from a list; its depth is limited by `MAX_NESTING`, not by Python's stack.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Any

from meta.frontend.relay import ast
from meta.frontend.relay.errors import RelayError
from meta.frontend.relay.text.lexer import (
    DTYPE,
    SHORT_DTYPES,
    STRING,
    Lexer,
    parse_number,
    skip_comment,
    unquote,
)

CONSTANT = "relay.Constant"
MODULE_ATTRIBUTES = "meta.module_attributes"
"""Where `tools/relay_text` puts the attributes of the module, for which Relay text has no place."""

_EDGE = re.compile(r'"|/\*|//|#\[\s*metadata\s*\]|^METADATA:', re.MULTILINE)
_STRING = re.compile(STRING)
_REFERENCE = re.compile(r"meta\s*\[([^\]\n]{0,200})\]\s*\[\s*([0-9]{1,9})\s*\]")
_HINT = (
    "save the program with mod.astext(), which writes the metadata section, or as JSON with"
    " tvm.ir.save_json"
)


@dataclass(frozen=True, slots=True)
class Missing:
    """What a reference stands for whose item the file does not hold."""

    type_key: str
    text: str


@dataclass(slots=True)
class Metadata:
    """The items of the section by type key. ``missing``: constants that it does not hold."""

    items: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    missing: dict[str, ast.Constant] = field(default_factory=dict)

    def at(self, lex: Lexer) -> tuple[Any, int]:
        """Return the item of the reference at ``meta``, or `Missing`, and where it ends."""
        match = _REFERENCE.match(lex.source, lex.start)
        if match is None:
            lex.fail("a reference into the metadata section, meta[relay.Constant][0]")
        key, index = match[1].strip(), int(match[2])
        items = self.items.get(key, ())
        item = items[index] if index < len(items) else None
        if item is None:
            item = Missing(key, f"meta[{key}][{index}]")
        return item, match.end()

    def take(self, lex: Lexer) -> Any:
        """Return the item of the reference at the current token, and step over it."""
        item, end = self.at(lex)
        lex.end = end
        lex.advance()
        return item

    def constant(self, missing: Missing) -> ast.Constant:
        """Return the constant that the file does not hold, the same for the same reference."""
        return self.missing.setdefault(missing.text, ast.Constant(None, missing.text))


def unavailable(lex: Lexer, missing: Missing, at: int) -> RelayError:
    """Return the error of a reference that nothing can be read without."""
    return lex.error(
        "the file does not hold what this refers to in its metadata section",
        at,
        found=missing.text,
        hint=_HINT,
    )


def split_metadata(text: str) -> tuple[str, str | None]:
    """Return the program and the JSON of the metadata section, None without one."""
    if "metadata" not in text and "METADATA:" not in text:
        return text, None
    at = 0
    while (edge := _EDGE.search(text, at)) is not None:
        if edge[0] == '"':
            string = _STRING.match(text, edge.start())
            at = len(text) if string is None else string.end()
        elif edge[0] in ("/*", "//"):
            end = skip_comment(text, edge.start())
            at = len(text) if end is None else end
        else:
            return text[: edge.start()], text[edge.end() :]
    return text, None


class TextScope:
    """Variables by name, and expressions by number.

    Variables hide one another and end with their scope; free ones hold to the end of the file. A
    number has no scope: it holds to the end of the file too. Only one that is bound again, which no
    printer writes, hides the first in its own scope.
    """

    def __init__(self) -> None:
        self.variables: dict[str, ast.Var] = {}
        self.free: dict[str, ast.Var] = {}
        self.numbers: dict[str, ast.Expr] = {}
        self._undo: list[tuple[dict[str, Any], str, Any]] = []
        self._lengths: set[int] = set()
        self._loose: dict[str, set[int]] = {}

    def mark(self) -> int:
        """Open a scope; return the state that `restore` goes back to."""
        return len(self._undo)

    def restore(self, mark: int) -> None:
        """Close the scope that began with a mark."""
        while len(self._undo) > mark:
            table, name, before = self._undo.pop()
            if before is None:
                del table[name]
            else:
                table[name] = before

    def declare(self, var: ast.Var, free: bool) -> None:
        """Let a name mean a variable in the innermost scope; a free one to the end of the file."""
        if free:
            self.free[var.name] = var
        else:
            self._undo.append((self.variables, var.name, self.variables.get(var.name)))
            self.variables[var.name] = var
        self._lengths.add(len(var.name))

    def note_loose(self, run: str, rest: str) -> None:
        """Note that a name goes on behind ``run`` with what otherwise ends one: blanks, ";"."""
        self._loose.setdefault(run, set()).add(len(run) + len(rest))

    def find_loose(self, run: str, text: str, at: int) -> ast.Var | None:
        """Return the variable with such a name that the text has at an offset, the longest."""
        for length in sorted(self._loose.get(run, ()), reverse=True):
            var = self.find(text[at : at + length])
            if var is not None and len(var.name) == length:
                return var
        return None

    def bind(self, number: str, value: ast.Expr) -> bool:
        """Let a number mean an expression. Return whether it had another meaning before."""
        again = number in self.numbers
        if again:
            self._undo.append((self.numbers, number, self.numbers[number]))
        self.numbers[number] = value
        return again

    def find(self, name: str) -> ast.Var | None:
        """Return the variable of that name."""
        return self.variables.get(name) or self.free.get(name)

    def find_in(self, run: str) -> ast.Var | None:
        """Return the variable with the longest name that ``run`` begins with.

        "conv1.weight.0" is a field of "conv1.weight" if that is declared, otherwise one of a
        field of "conv1". Names do not end within a word.
        """
        for end in range(len(run) - 1, 0, -1):
            if end in self._lengths and not (_is_word(run[end - 1]) and _is_word(run[end])):
                var = self.find(run[:end])
                if var is not None:
                    return var
        return None


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"


Step = Generator[Any, Any, Any]
"""Parses a part of the text; yields the steps it needs, and is sent what they return."""


def run(step: Step) -> Any:
    """Return what a step returns."""
    steps, value = [step], None
    while steps:
        try:
            needed = steps[-1].send(value)
        except StopIteration as stop:
            steps.pop()
            value = stop.value
        else:
            steps.append(needed)
            value = None
    return value


@dataclass(slots=True)
class Reader:
    """State of the parser.

    Attributes
    ----------
    old: whether the text is of version 0.0.1 to 0.0.4. type_vars: type parameters in scope.
    constructors: by name, the data type and how many fields each has. operators: names that were
    read as operators, and where first.
    rebound: the places where a number of a graph binding was bound again.
    progress: is told the offset now and then.
    """

    lex: Lexer
    metadata: Metadata
    old: bool = False
    scope: TextScope = field(default_factory=TextScope)
    type_vars: frozenset[str] = frozenset()
    constructors: dict[str, tuple[str, int]] = field(default_factory=dict)
    operators: dict[str, int] = field(default_factory=dict)
    rebound: list[ast.Location] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    progress: Callable[[int], None] = lambda offset: None
    depth: int = 0
    comments: dict[tuple[str, frozenset[str]], ast.Type | None] = field(default_factory=dict)

    def enter(self) -> None:
        """Begin a part that nests, or fail if it lies too deep."""
        self.depth += 1
        if self.depth > ast.MAX_NESTING:
            raise self.too_deep()

    def too_deep(self) -> RelayError:
        """Return the error of a part that lies too deep."""
        return self.lex.error(
            "this Relay text is nested too deeply",
            expected=f"at most {ast.MAX_NESTING} levels",
            hint="bind inner expressions to names with 'let' or to numbers, '%0 = ...;'",
        )


_LARGEST = 2**63 - 1
_BRACKET = re.compile(r"\s*\[")
_PARENTHESIS = re.compile(r"\s*\(")


def read_type(r: Reader) -> ast.Type:
    """Read a type."""
    plain = _plain(r)
    return run(_compound(r, 0)) if plain is None else plain


def _plain(r: Reader) -> ast.Type | None:
    """Read a type that has no types in it; None if here is one that has."""
    lex = r.lex
    word = lex.text
    if lex.kind == "(":
        return None
    if lex.kind != "name":
        lex.fail("a type")
    if word == "Tensor":
        return _tensor(r)
    if word == "_":
        lex.advance()
        return ast.UnknownType()
    if word == "fn" or lex.follows(_BRACKET) or (word == "ref" and lex.follows(_PARENTHESIS)):
        return None
    name = read_name(r, "a type")
    if word[0] != "$" and DTYPE.fullmatch(name):
        return ast.TensorType((), SHORT_DTYPES.get(name, name))
    return ast.TypeVar(name) if name in r.type_vars else ast.DataType(name)


def _compound(r: Reader, depth: int) -> Step:
    """Read a type with types in it."""
    lex = r.lex
    if depth >= ast.MAX_NESTING:
        raise r.too_deep()
    if lex.accept("("):
        fields, comma = yield _types(r, ")", depth)
        # Up to version 0.0.4 parentheses group.
        return fields[0] if r.old and len(fields) == 1 and not comma else ast.TupleType(fields)
    if lex.accept_name("fn"):
        return (yield _function(r, depth))
    if lex.text == "ref" and lex.follows(_PARENTHESIS):
        lex.advance()
        lex.advance()
        value = yield _inner(r, depth)
        lex.expect(")")
        return ast.RefType(value)
    name = read_name(r, "a type")
    lex.expect("[")
    args, _ = yield _types(r, "]", depth)
    return ast.DataType(name, args)


def _inner(r: Reader, depth: int) -> Step:
    plain = _plain(r)
    return (yield _compound(r, depth + 1)) if plain is None else plain


def _types(r: Reader, close: str, depth: int) -> Step:
    """Read types up to a closing mark, and tell whether a comma stands before it."""
    types: list[ast.Type] = []
    for _ in r.lex.items(close):
        plain = _plain(r)
        types.append((yield _compound(r, depth + 1)) if plain is None else plain)
    return tuple(types), r.lex.trailing_comma


def _function(r: Reader, depth: int) -> Step:
    names = read_type_params(r)
    inner = replace(r, type_vars=r.type_vars | frozenset(names)) if names else r
    r.lex.expect("(")
    params, _ = yield _types(inner, ")", depth)
    r.lex.expect("->")
    return ast.FuncType(params, (yield _inner(inner, depth)), names)


def read_types(r: Reader, close: str) -> tuple[ast.Type, ...]:
    """Read types with commas between them up to a closing mark, which is stepped over."""
    types: tuple[ast.Type, ...] = run(_types(r, close, 0))[0]
    return types


def read_name(r: Reader, what: str) -> str:
    """Read a name without a sign."""
    text = r.lex.expect("name", what)
    return unquote(text[1:]) if text[0] == "$" else text


def read_type_params(r: Reader) -> tuple[str, ...]:
    """Read ``[A, B]`` if it is there."""
    if not r.lex.accept("["):
        return ()
    return tuple([read_name(r, "a type parameter") for _ in r.lex.items("]")])


def take_comment(r: Reader) -> ast.Type | None:
    """Return the type that the comment before the current token states, if it can be read."""
    text, r.lex.type_comment = r.lex.type_comment, None
    if text is None:
        return None
    key = (text, r.type_vars)
    if key not in r.comments:
        r.comments[key] = _comment(r, text)
    return r.comments[key]


def _comment(r: Reader, text: str) -> ast.Type | None:
    try:
        lex = Lexer(text, r.lex.file)
        inner = Reader(lex, r.metadata, r.old, type_vars=r.type_vars)
        result = read_type(inner)
    except RelayError:
        return None
    return result if lex.kind == "end" else None


def _tensor(r: Reader) -> ast.Type:
    lex = r.lex
    lex.advance()
    lex.expect("[")
    if lex.accept("("):
        dims = [_dim(r) for _ in lex.items(")")]
    elif r.old:
        dims = [_dim(r)]
    else:
        lex.fail("a shape, '('")
    lex.expect(",", "',' and a dtype")
    quoted = lex.text[:1] == "$"
    dtype = read_name(r, "a dtype")
    if dtype == "custom" and lex.accept("["):
        dtype = f"custom[{read_name(r, 'the name of a dtype')}]"
        lex.expect("]")
        dtype += lex.expect("number", "a number of bits")
    lex.expect("]")
    return ast.TensorType(tuple(dims), dtype if quoted else SHORT_DTYPES.get(dtype, dtype))


def _dim(r: Reader) -> ast.Dim:
    lex = r.lex
    if lex.accept("?"):
        return ast.AnyDim()
    if lex.kind == "name" and lex.text == "meta":
        at = lex.start
        item = r.metadata.take(lex)
        if isinstance(item, Missing):
            return ast.SymbolDim(item.text)
        if isinstance(item, int | ast.AnyDim | ast.SymbolDim) and not isinstance(item, bool):
            return item
        lex.fail("a dimension", f"a {type(item).__name__}", at=at)
    if lex.kind == "number" and (value := _integer(lex.text)) is not None:
        lex.advance()
        return value
    lex.fail(f"a dimension: '?' or an integer from 0 to {_LARGEST}")


def _integer(text: str) -> int | None:
    try:
        value, _ = parse_number(text)
    except ValueError:
        return None
    return value if isinstance(value, int) and 0 <= value <= _LARGEST else None
