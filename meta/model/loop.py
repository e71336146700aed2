"""A loop of a traced program: a global function that calls itself in tail position."""

from __future__ import annotations

from typing import Any, cast

from meta.ir import Call, Expr, Function, FuncType, GlobalVar, If, Tuple, TupleType, Type, Var
from meta.model.carry import Carry
from meta.op.core import tree
from meta.op.core.tracing import BlockTrace, FunctionTrace, Symbol, Trace, Value


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
