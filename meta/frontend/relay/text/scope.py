"""What the names of a Relay text stand for at a place: variables, and numbers of graph bindings."""

from __future__ import annotations

from typing import Any

from meta.frontend.relay import ast

Mark = int
"""A state of a `Scope` that it can go back to."""


class Scope:
    """Variables by name, and expressions by number.

    Variables hide one another and end with their scope; those of `declare_free` hold to the end of
    the file. A number has no scope: it holds to the end of the file too. Only one that is bound
    again, which no printer writes, hides the first in its own scope.
    """

    def __init__(self) -> None:
        self.variables: dict[str, ast.Var] = {}
        self.free: dict[str, ast.Var] = {}
        self.numbers: dict[str, ast.Expr] = {}
        self._undo: list[tuple[dict[str, Any], str, Any]] = []
        self._lengths: set[int] = set()
        self._loose: dict[str, set[int]] = {}

    def mark(self) -> Mark:
        """Open a scope."""
        return len(self._undo)

    def restore(self, mark: Mark) -> None:
        """Close the scope that began with a mark."""
        while len(self._undo) > mark:
            table, name, before = self._undo.pop()
            if before is None:
                del table[name]
            else:
                table[name] = before

    def declare(self, var: ast.Var) -> None:
        """Let a name mean a variable in the innermost scope."""
        self._undo.append((self.variables, var.name, self.variables.get(var.name)))
        self.variables[var.name] = var
        self._lengths.add(len(var.name))

    def declare_free(self, var: ast.Var) -> None:
        """Let a name mean a variable from here to the end of the file."""
        self.free[var.name] = var
        self._lengths.add(len(var.name))

    def note_loose(self, run: str, rest: str) -> None:
        """Note that a name has characters which otherwise end one: blanks, brackets, ';'.

        ``run`` is what stands before the first of them.
        """
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
