"""What the parts of the parser share: the tokens, the names in scope, and the metadata section at
the end of a text with references to it, ``meta[relay.Constant][0]``.

Nothing of the parser calls itself along the program. What nests (blocks, arguments, functions,
branches) is parsed by generators that yield the generator of the part they need next, which `run`
drives from a list; its depth is limited by `MAX_NESTING`, not by Python's stack.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from meta.frontend.relay import ast
from meta.frontend.relay.errors import RelayError
from meta.frontend.relay.text.lexer import STRING, Lexer, skip_comment

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
