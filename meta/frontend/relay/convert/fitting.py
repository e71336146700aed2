"""Values where a type is expected: functions become closures of the IR, data of an open type get
one, and what the program declares is checked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from meta.frontend.relay import ast
from meta.frontend.relay.convert.context import Context
from meta.frontend.relay.convert.types import Bindings, relay_text
from meta.frontend.relay.convert.values import Closure, KnownFunction, OpenData, type_of
from meta.ir import Function, FuncType, Type, compatible
from meta.op.core.tracing import BlockTrace, Value

if TYPE_CHECKING:
    from meta.frontend.relay.convert.evaluate import Evaluator


class Fitting(ABC):
    """What gives values types; `Functions` can call, too."""

    def __init__(self, context: Context, evaluator: Evaluator) -> None:
        self.context, self.evaluator = context, evaluator

    @abstractmethod
    def call(
        self, callee: Any, args: tuple[Any, ...], node: ast.Call | None, types: Bindings
    ) -> Any:
        """Call a function value and return the result."""

    def check_count(self, name: str, expected: int, found: int) -> None:
        """Raise RelayError for another number of arguments than is expected."""
        if expected != found:
            raise self.context.error(
                f"{name} is called with another number of arguments", expected=expected, found=found
            )

    def fit(self, value: Any, declared: ast.Type | None, types: Bindings, what: str) -> Any:
        """Return a value that has a type, which is checked against the declared one."""
        if type_of(value) is None:
            value = self._typed(value, declared, types)
        found = type_of(value)
        assert found is not None
        self.check(declared, found, types, what)
        return value

    def _typed(self, value: Any, declared: ast.Type | None, types: Bindings) -> Any:
        to_ir = self.context.types.to_ir
        known = to_ir(declared, types)
        if known is not None:
            return self.coerce(value, known)
        if isinstance(value, tuple):
            fields: tuple[ast.Type | None, ...] = (None,) * len(value)
            if isinstance(declared, ast.TupleType) and len(declared.fields) == len(value):
                fields = declared.fields
            return tuple(
                v if type_of(v) is not None else self._typed(v, f, types)
                for v, f in zip(value, fields, strict=True)
            )
        if isinstance(value, KnownFunction) and isinstance(declared, ast.FuncType):
            return self.as_value(value, [to_ir(p, types) for p in declared.params])
        return self.coerce(value, None)

    def check(self, declared: ast.Type | None, found: Type, types: Bindings, what: str) -> None:
        """Raise RelayError for a type that the declared one does not allow."""
        if not self.context.types.unify(declared, found, types):
            raise self.context.error(
                f"{what} has another type than the program declares",
                expected=relay_text(declared),
                found=found,
            )

    def coerce(self, value: Any, expected: Type | None) -> Any:
        """Return a value that has a type: the expected one, if it is known."""
        found = type_of(value)
        if found is None and isinstance(value, tuple):
            fields = getattr(expected, "fields", (None,) * len(value))
            value = tuple(self.coerce(v, f) for v, f in zip(value, fields, strict=True))
        elif isinstance(value, OpenData):
            value = self.evaluator.data.close(value, expected)
        elif isinstance(value, KnownFunction):
            params = expected.params if isinstance(expected, FuncType) else None
            value = self.as_value(value, params)
        found = type_of(value)
        if found is None or not compatible(found, expected):
            raise self.context.error(
                "a value has another type than it should have here", expected=expected, found=found
            )
        return value

    def as_value(self, function: KnownFunction, params: Sequence[Type | None] | None) -> Value:
        """Return a known function as a closure of the IR, with parameters of these types."""
        wanted = params
        if isinstance(function, Closure):
            own = [self.context.types.to_ir(p.type, function.env.types) for p in function.params]
            given = params or [None] * len(own)
            self.check_count(function.name, len(own), len(given))
            wanted = [g if g is not None else o for g, o in zip(given, own, strict=True)]
        known = [t for t in wanted or () if t is not None]
        if wanted is None or len(known) != len(wanted):
            raise self.context.error(
                "the types of the parameters of a function that is used as a value are not known",
                hint="declare them: fn (%x: Tensor[(...), float32]) { ... }",
            )
        trace = self.context.trace
        block = BlockTrace(trace)
        variables, values = [], []
        with self.context.within(block):
            for i, type_ in enumerate(known):
                var, value = block.parameter(type_, f"x{i}")
                variables.append(var)
                values.append(value)
            result = self.coerce(self.call(function, tuple(values), None, {}), None)
            body = block.finish(result)
        made = Function(tuple(variables), body, type_of(result))
        returned = made.result_type or type_of(result)
        assert returned is not None
        type_ = FuncType(tuple(known), returned)
        found: Value = trace.emit(made, type_)
        return found
