"""The carry of control flow: nested containers of arrays or symbols, and the checks on them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from meta.base.device import CPU, Device
from meta.base.errors import ArgumentError, TraceError, TypeInferError
from meta.base.source import definition_span
from meta.ir import TensorType, Type
from meta.op.core import tree
from meta.op.core.call import array_type
from meta.op.core.tracing import Trace, Value
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
