"""A loop of a traced program, a global function that calls itself in tail position; and the carry
of control flow: nested containers of arrays or symbols, and the checks on them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from meta.base.device import CPU, Device
from meta.base.errors import ArgumentError, TraceError, TypeInferError
from meta.base.source import definition_span
from meta.ir import (
    Call,
    Expr,
    Function,
    FuncType,
    GlobalVar,
    If,
    TensorType,
    Tuple,
    TupleType,
    Type,
    Var,
)
from meta.op.core import tree
from meta.op.core.call import array_type
from meta.op.core.tracing import BlockTrace, FunctionTrace, Symbol, Trace, Value
from meta.runtime.ndarray import array, as_array, ndarray

_BOOL = TensorType((), "bool")

HINT = "cast, reshape or fill what differs; a Python number is float32, int64 or bool"


class Carry:
    """A nested container of arrays, or while tracing of symbols, taken apart.

    ``key`` is the same for states of one structure and types; ``str`` shows both. The keys of dicts
    come in the order of another state that is given, if that has the same.
    """

    structure: Any

    def __init__(self, value: Any, trace: Trace | None = None, like: Carry | None = None) -> None:
        if like is not None:
            value = tree.reorder_like(value, like.structure)
        leaves, self.structure = tree.flatten(value, _is_leaf)
        where = CPU if trace is None else trace.device
        where = next((v.device for v in leaves if isinstance(v, ndarray)), where)
        arrays = [_as_array(v, where) for v in leaves]
        self.leaves: list[Any] = arrays if trace is None else [trace.lift(a) for a in arrays]
        self.types = [_type(leaf) for leaf in self.leaves]
        self.key = (tree.fingerprint(self.structure), tuple(self.types))

    def tree(self, leaves: list[Any] | None = None) -> Any:
        """Return the container, with these leaves or its own."""
        return tree.unflatten(self.structure, self.leaves if leaves is None else leaves)

    def __str__(self) -> str:
        return tree.text(self.structure, lambda i: str(self.types[i]))


def next_carry(
    state: Carry, value: Any, what: str, function: Callable[..., Any], trace: Trace | None = None
) -> Carry:
    """Return the state that a step returned; TraceError if its type is not that of ``state``."""
    new = Carry(value, trace, state)
    if new.key != state.key:
        raise TraceError(
            f"the body of {what} changes the type of its state",
            expected=f"{state}, as it is given",
            found=f"{new}, from {function_name(function)}",
            hint=HINT,
        )
    return new


def _is_leaf(value: object) -> bool:
    return tree.is_array(value) or isinstance(value, bool | int | float | np.generic)


def _as_array(value: Any, device: Device) -> Any:
    if tree.is_array(value):
        return value if isinstance(value, Value) else as_array(value)
    return array(value, device=device)


def _type(leaf: Any) -> Type:
    return leaf.type if isinstance(leaf, Value) else array_type(leaf.key)


def predicate(symbol: Value, what: str, function: Callable[..., Any] | None = None) -> Value:
    """Return a traced predicate; TypeInferError if it is none."""
    _require_bool(symbol.type, what, function)
    return symbol


def truth(value: Any, what: str, function: Callable[..., Any] | None = None) -> bool:
    """Return the Python bool of a predicate; TypeInferError for another array."""
    found = as_array(value)
    _require_bool(array_type(found.key), what, function)
    return bool(found)


def _require_bool(type_: Type, what: str, function: Callable[..., Any] | None) -> None:
    if type_ != _BOOL:
        raise TypeInferError(
            f"{what} must be a bool array without axes",
            expected=_BOOL,
            found=f"{type_}" if function is None else f"{type_}, from {function_name(function)}",
            hint="compare (x > 0.0), and reduce with meta.all or meta.any",
        )


def require_functions(*functions: Any) -> None:
    """Raise ArgumentError if one cannot be called."""
    for function in functions:
        if not callable(function):
            raise ArgumentError(
                "control flow is given functions",
                expected="a function",
                found=f"{type(function).__name__}",
                hint="write lambda: ... around a value",
            )


def function_name(function: Callable[..., Any]) -> str:
    """Return a function's name and line, or the type of another callable."""
    inner = inspect.unwrap(function)
    if not hasattr(inner, "__code__"):
        return type(function).__name__
    return f"{inner.__name__} at {definition_span(inner)}"


class Loop:
    """A function of the program that calls itself until a condition is false.

    Its parameters are what it carries, then what it captures. Call `carry` (again, too), `enter`
    once, then build the next values in ``body`` and `finish`.
    """

    def __init__(self, trace: Trace, name: str) -> None:
        self.trace, self.name = trace, trace.global_names.unique(name)
        self.scope = _LoopTrace(trace)
        self.inits: list[Value] = []
        self.params: list[Value] = []

    def carry(self, start: Carry, name: str) -> list[Any]:
        """Add carried values; return what stands for them in the loop."""
        names = tree.leaf_names(start.structure, name)
        added = [
            self.scope.parameter(s.type, n)[1] for s, n in zip(start.leaves, names, strict=True)
        ]
        self.inits += start.leaves
        self.params += added
        return added

    def enter(self, condition: Value) -> None:
        """Go on as long as the condition is true."""
        self.condition = condition
        self.body = BlockTrace(self.scope)

    def finish(self, new: list[Value]) -> list[Value]:
        """Close the loop with the next carried values; return the last ones, in the code around."""
        wanted, keys = len(self.params), self.scope.keys
        new = [*new, *(self.body.run(lambda k=k: k + 1) for k in keys)]
        self.inits, self.params = [*self.inits, *self.scope.first_keys], [*self.params, *keys]
        outside, inside = list(self.scope.captured), list(self.scope.captured.values())
        params = [_var(s) for s in (*self.params, *inside)]
        result = pack(params[: len(self.params)])
        type_ = packed_type([s.type for s in self.params])
        types = tuple(s.type for s in (*self.params, *inside))
        loop = GlobalVar(self.name, FuncType(types, type_))
        site = self.trace.site()
        again = Call(loop, tuple(s.atom for s in (*new, *inside)))
        body = self.body.builder.finish(self.body.builder.emit(again, type_, span=site))
        done = BlockTrace(self.scope).builder.finish(result)
        choice = If(self.condition.atom, body, done)
        block = self.scope.builder.finish(self.scope.builder.emit(choice, type_, span=site))
        self.trace.functions[self.name] = Function(tuple(params), block, type_)
        call = Call(loop, (*(s.atom for s in self.inits), *outside))
        return unpack(self.trace.emit(call, type_))[:wanted]


class _LoopTrace(FunctionTrace):
    """The function of a loop; random calls that get keys carry them along, counted up per step."""

    def __init__(self, outer: Trace) -> None:
        super().__init__(outer)
        self.first_keys: list[Value] = []
        self.keys: list[Value] = []

    def draw_key(self) -> Symbol | None:
        """Return a key that this step has for itself."""
        first = self.outer.draw_key()
        if first is None:
            return None
        _, key = self.parameter(first.type, "key")
        self.first_keys.append(first)
        self.keys.append(key)
        return cast(Symbol, key)


def pack(atoms: list[Any]) -> Expr:
    """Return one atom for a list of them: itself where it is one."""
    return atoms[0] if len(atoms) == 1 else Tuple(tuple(atoms))


def packed_type(types: list[Type]) -> Type:
    """Return the type of what `pack` returns for atoms of these types."""
    return types[0] if len(types) == 1 else TupleType(tuple(types))


def unpack(symbols: Any) -> list[Value]:
    """Return the values of what `pack` returned."""
    return list(symbols) if isinstance(symbols, tuple) else [symbols]


def _var(symbol: Value) -> Var:
    assert isinstance(symbol.atom, Var)
    return symbol.atom
