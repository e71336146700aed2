"""Deduplication: equal functions are one function, equal constants are one constant."""

from __future__ import annotations

import hashlib

from meta.ir import (
    Constant,
    Expr,
    Function,
    Module,
    TensorType,
    structural_equal,
    structural_hash,
)
from meta.ir.constants import tensor_bytes
from meta.ir.visit import rename_globals, replace_atoms


def deduplicate(module: Module) -> Module:
    """Keep one of several equal global functions, and one of several equal constants.

    Functions are equal if nothing but names differs, ``main`` aside; what calls the others calls
    the first. Constants are equal if all their bits are. That helps what compares by identity:
    `eliminate_common_subexpressions`, and the memory of a compiled program.

    >>> from meta.ir import parse
    >>> print(deduplicate(parse('''
    ... func @main(%x: float32[2]) -> float32[2] {
    ...   %a: float32[2] = @f(%x)
    ...   %b: float32[2] = @g(%a)
    ...   return %b
    ... }
    ... func @f(%y: float32[2]) -> float32[2] {
    ...   %c: float32[2] = exp(%y)
    ...   return %c
    ... }
    ... func @g(%z: float32[2]) -> float32[2] {
    ...   %d: float32[2] = exp(%z)
    ...   return %d
    ... }''')))
    func @main(%x: float32[2]) -> float32[2] {
      %a: float32[2] = @f(%x)
      %b: float32[2] = @f(%a)
      return %b
    }
    <BLANKLINE>
    func @f(%y: float32[2]) -> float32[2] {
      %c: float32[2] = exp(%y)
      return %c
    }
    """
    constants = _Constants()
    functions = {name: replace_atoms(f, constants.first) for name, f in module.functions.items()}
    # What calls functions that have become one may now be equal itself.
    while names := _twins(functions):
        functions = {
            name: rename_globals(f, names) for name, f in functions.items() if name not in names
        }
    return module.with_functions(functions)


def _twins(functions: dict[str, Function]) -> dict[str, str]:
    """Return the names of functions that equal an earlier one, and the name of that."""
    by_hash: dict[int, list[str]] = {}
    twins = {}
    for name, function in functions.items():
        if name == "main":
            continue
        # One that calls itself is compared as if both had one name.
        own = rename_globals(function, {name: "main"})
        alike = by_hash.setdefault(structural_hash(own), [])
        for earlier in alike:
            if structural_equal(rename_globals(functions[earlier], {earlier: "main"}), own):
                twins[name] = earlier
                break
        else:
            alike.append(name)
    return twins


class _Constants:
    """The constants met so far, by type and bits."""

    def __init__(self) -> None:
        self._first: dict[tuple[TensorType, bytes], Constant] = {}
        self._keys: dict[Constant, tuple[TensorType, bytes]] = {}

    def first(self, atom: Expr) -> Expr:
        """Return the first constant that is equal to an atom; the atom itself if it is none."""
        if not isinstance(atom, Constant):
            return atom
        if atom not in self._keys:
            digest = hashlib.blake2b(tensor_bytes(atom.data)).digest()
            self._keys[atom] = (atom.type, digest)
        return self._first.setdefault(self._keys[atom], atom)
