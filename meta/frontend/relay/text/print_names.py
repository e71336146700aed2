"""The names that variables have in the text: their own, with a number where two are alike."""

from __future__ import annotations

from collections.abc import Iterable

from meta.frontend.relay import ast
from meta.frontend.relay.text.quoting import local_name


class NameWriter:
    """Names of variables in one function; those of free variables hold in the whole file."""

    def __init__(self, reserved: set[str]) -> None:
        self._reserved = reserved
        self._taken: set[str] = set()
        self._numbers: dict[str, int] = {}
        self._names: dict[ast.Var, str] = {}
        self._used: set[ast.Var] = set()

    def bind(self, var: ast.Var) -> str:
        """Return a variable's name where it is bound; it has no other in the function."""
        name = self._unique(var.name)
        self._taken.add(name)
        self._names[var] = name
        return local_name(name)

    def unbind(self, variables: Iterable[ast.Var]) -> None:
        """End the scope of variables."""
        for var in variables:
            self._names.pop(var, None)

    def free(self, var: ast.Var) -> str:
        """Return the name of a variable that nothing binds, where it is declared."""
        text = self.bind(var)
        self._reserved.add(self._names[var])
        return text

    def find(self, var: ast.Var) -> str | None:
        """Return the name of a variable that is in scope."""
        name = self._names.get(var)
        if name is None:
            return None
        self._used.add(var)
        return local_name(name)

    def is_used(self, var: ast.Var) -> bool:
        """Tell whether a variable has been written since it was bound."""
        return var in self._used

    def hides_field(self, var: ast.Var, index: int) -> bool:
        """Tell whether ``%x.0`` would be read as another variable."""
        name = f"{self._names.get(var)}.{index}"
        return name in self._taken or name in self._reserved

    def _unique(self, name: str) -> str:
        unique = name
        number = self._numbers.get(name, 0)
        while unique in self._taken or unique in self._reserved:
            number += 1
            unique = f"{name}{number}"
        self._numbers[name] = number
        return unique
