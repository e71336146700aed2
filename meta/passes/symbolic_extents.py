"""Which names of extents a function uses, and what in it says which numbers these are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from meta.ir import Call, Expr, Function, SymbolicDim, TensorType, Tuple, Var, bindings, free_vars
from meta.ir.node import type_of


def free_extent_names(function: Function, given: Iterable[Var]) -> list[str]:
    """Return the names of extents that attributes of calls in a function use, closures in it
    included, and that are a dimension of no ``given`` variable.
    """
    used: dict[str, None] = {}
    for binding in bindings(function):
        if isinstance(binding.value, Call):
            own = set(_dims(map(type_of, _atoms(binding.value.args))))
            names = (n for a in binding.value.args for n in _names(a))
            used |= dict.fromkeys(n for n in names if SymbolicDim(n) not in own)
    if not used:
        return []
    known = set(_dims(v.type for v in given))
    return [n for n in used if SymbolicDim(n) not in known]


def captured_vars(closure: Function, scope: Iterable[Var]) -> tuple[Var, ...]:
    """Return the variables that a closure uses of the code around, and of the ``scope`` those that
    say what extents are which it uses by name.
    """
    captured = dict.fromkeys(free_vars(closure))
    for name in free_extent_names(closure, (*captured, *closure.params)):
        says = (v for v in scope if SymbolicDim(name) in _dims([v.type]))
        captured |= dict.fromkeys(islice(says, 1))
    return tuple(captured)


def _names(argument: Any) -> Iterator[str]:
    if isinstance(argument, SymbolicDim):
        yield from sorted(argument.symbols())
    elif isinstance(argument, tuple):
        for part in argument:
            yield from _names(part)


def _atoms(arguments: Iterable[Any]) -> Iterator[Expr]:
    for argument in arguments:
        if isinstance(argument, Tuple):
            yield from _atoms(argument.fields)
        elif isinstance(argument, Expr):
            yield argument


def _dims(types: Iterable[Any]) -> Iterator[Any]:
    """Yield the dimensions of those types that are tensors'."""
    for type_ in types:
        if isinstance(type_, TensorType):
            yield from type_.shape
