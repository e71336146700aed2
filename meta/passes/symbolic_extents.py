"""Which names of extents a function uses, and what in it says which numbers these are; and which
kernels serve all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from meta.base.device import Device
from meta.base.errors import TypeInferError
from meta.dialect.core import FUSED, DialectOp
from meta.dialect.core.ir_calls import base_op, leaf_types
from meta.ir import (
    Call,
    Expr,
    Function,
    Module,
    SymbolicDim,
    TensorType,
    Tuple,
    TupleGetItem,
    Type,
    Var,
    bindings,
    free_vars,
)
from meta.ir.dims import is_symbolic
from meta.ir.node import type_of
from meta.passes.call_graph import PREPARED_BY


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


def is_specialized(module: Module, device: Device) -> bool:
    """Whether a program with symbolic dimensions is written for the extents of each call, so that
    its memory is planned: a straight line of kernels on the CPU, by names that its inputs tell.
    """
    if device.kind != "cpu" or "main" not in module.functions:
        return False
    main, own = module.main, {"main", module.main.attrs.get(PREPARED_BY)}
    if any(n not in own and FUSED not in f.attrs for n, f in module.functions.items()):
        return False
    if not all(_is_straight(binding.value) for binding in main.body.bindings):
        return False
    dims = [d for d in _dims(p.type for p in main.params) if isinstance(d, SymbolicDim)]
    told = {d.name for d in dims if d.name is not None}
    return bool(dims) and all(d.symbols() <= told for d in dims)


def _is_straight(value: Expr) -> bool:
    if isinstance(value, Call):
        return base_op(value.callee) is not None or not isinstance(value.callee, Var)
    return isinstance(value, Tuple | TupleGetItem)


def serves_all_extents(call: Call, result: Type | None) -> bool:
    """Whether a dispatched call on the CPU has one kernel for all extents of its dimensions: none
    of them can be 0, and each is one of an argument.
    """
    if not isinstance(call.callee, DialectOp) or "cpu" not in call.callee.symbolic or not result:
        return False
    if any(map(is_symbolic, call.args)):
        return False
    given = [type_of(atom) for atom in _atoms(call.args)]
    arrays = [*given, *leaf_types(result)]
    if not all(isinstance(t, TensorType) and _is_positive(t) for t in arrays):
        return False
    known = set(_dims(given))
    return all(isinstance(d, int) or d in known for d in _dims(leaf_types(result)))


def _is_positive(type_: TensorType) -> bool:
    try:
        return all(isinstance(d, int | SymbolicDim) and d > 0 for d in type_.shape)
    except TypeInferError:  # that depends on the extents
        return False
