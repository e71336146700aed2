"""Functions of a program that have a derivative of their own, and those of their rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

from meta.ir import CLOSED_OVER, Call, Function, FuncType, GlobalVar, Type, Var, type_of
from meta.model.loop import pack, packed_type, unpack
from meta.op.core import tree
from meta.op.core.tracing import FunctionTrace, Trace, Value


class RuleScope(FunctionTrace):
    """A function under construction. Its parameters are ``given``, then what it and the functions
    beside it close over, then what `add_last` adds.
    """

    def __init__(self, outer: Trace, types: Sequence[Type]) -> None:
        super().__init__(outer)
        self.given = [self.parameter(t, f"x{i}")[1] for i, t in enumerate(types)]
        self._last: list[Any] = []

    def add_last(self, types: Sequence[Type]) -> list[Any]:
        """Add parameters behind all others."""
        self._last = [self.parameter(t, f"dx{i}")[1] for i, t in enumerate(types)]
        return self._last

    def returns(self, values: Sequence[Any]) -> None:
        """Let the function return a tuple of these."""
        self._body = self.finish(tuple(values))

    def returns_one(self, values: Sequence[Value]) -> None:
        """Let the function return what `pack` makes of these."""
        self._body = self.builder.finish(pack([v.atom for v in values]))

    def function(
        self, captured: Sequence[Var], attrs: Mapping[str, Any] = MappingProxyType({})
    ) -> Function:
        """Return the function, which is given these variables of the code around, too."""
        params = [v.atom for v in self.given]
        for outer in captured:
            inner = self.captured.get(outer)
            params.append(Var(outer.name, outer.type) if inner is None else inner.atom)
        params += [v.atom for v in self._last]
        return Function(tuple(params), self._body, type_of(self._body.result), dict(attrs))


class OpenFunction:
    """A function whose rule is being traced, which may call it.

    Attributes
    ----------
    trace: the code around. structure: of the result. arguments, results: types of leaves.
    captured: the variables of the code around that it and its rule close over.
    """

    def __init__(self, name: str, trace: Trace, scope: RuleScope, result: Any) -> None:
        leaves, self.structure = tree.flatten(result)
        ys = [scope.lift(y) for y in leaves]
        scope.returns_one(ys)
        self.trace, self.scope = trace, scope
        self.name = trace.global_names.unique(name if name.isidentifier() else "custom")
        self.arguments = [v.type for v in scope.given]
        self.results = [y.type for y in ys]
        self.captured: list[Var] = list(scope.captured)

    def call(self, trace: Trace, given: Sequence[Value]) -> Any:
        """Return the result of a call in code of a trace."""
        around = [self.trace.unpack(v, cast(Type, v.type)) for v in self.captured]
        args = [*given, *map(trace.lift, around)]
        type_ = packed_type(self.results)
        callee = GlobalVar(self.name, FuncType(tuple(a.type for a in args), type_))
        found = trace.emit(Call(callee, tuple(a.atom for a in args)), type_)
        return tree.unflatten(self.structure, unpack(found))


def call_with_rule(
    opened: OpenFunction, given: Sequence[Value], write: Callable[[], dict[str, RuleScope]]
) -> Any:
    """Return the result of a call, after the functions of the rule are written, by attribute."""
    trace, rules = opened.trace, write()
    while missing := [v for s in rules.values() for v in s.captured if v not in opened.captured]:
        opened.captured += dict.fromkeys(missing)
        rules = write()  # what calls the function hands these in, too
    attrs: dict[str, Any] = {}
    for attr, scope in rules.items():
        name = trace.global_names.unique(f"{opened.name}_{attr}")
        trace.functions[name] = function = scope.function(opened.captured)
        attrs[attr] = GlobalVar(name, function.type)
    if opened.captured:
        attrs[CLOSED_OVER] = len(opened.captured)
    trace.functions[opened.name] = opened.scope.function(opened.captured, attrs)
    return opened.call(trace, given)
