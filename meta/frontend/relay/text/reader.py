"""What the parts of the parser share: the tokens, the names in scope, the metadata section.

Nothing of the parser calls itself along the program. What nests (blocks, arguments, functions,
branches) is parsed by generators that yield the generator of the part they need next, which `run`
drives from a list; its depth is limited by `MAX_NESTING`, not by Python's stack.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from meta.frontend.relay import ast
from meta.frontend.relay.errors import RelayError
from meta.frontend.relay.text.lexer import Lexer
from meta.frontend.relay.text.metadata import Metadata
from meta.frontend.relay.text.scope import Scope

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
class ConstructorFacts:
    """A constructor that is known: its data type, and how many fields it has."""

    data_type: str
    arity: int


@dataclass(slots=True)
class Reader:
    """State of the parser.

    Attributes
    ----------
    old: whether the text is of version 0.0.1 to 0.0.4. type_vars: type parameters in scope.
    constructors: by name. operators: names that were read as operators, and where first.
    rebound: the places where a number of a graph binding was bound again.
    progress: is told the offset now and then.
    """

    lex: Lexer
    metadata: Metadata
    old: bool = False
    scope: Scope = field(default_factory=Scope)
    type_vars: frozenset[str] = frozenset()
    constructors: dict[str, ConstructorFacts] = field(default_factory=dict)
    operators: dict[str, int] = field(default_factory=dict)
    rebound: list[ast.Place] = field(default_factory=list)
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

    def on_comment(self, text: str) -> Reader:
        """Return a reader of a comment's text, which sees the same types."""
        return Reader(Lexer(text, self.lex.file), self.metadata, self.old, type_vars=self.type_vars)
