"""Calls of `fused_attention` and of its gradient become other operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from meta import op
from meta.dialect.core.ir_calls import OpCall, op_call
from meta.ir import Binding, DefUse, Expr, Function, Module, Tuple, TupleGetItem
from meta.op.core.tracing import Trace
from meta.passes.rewrite import map_functions, rewrite_function

Arguments = Mapping[str, Any]
"""The arguments of a call by name; in a trace, its values."""


def rewrite_attention(
    module: Module,
    fits: Callable[[Arguments], bool],
    write: Callable[[OpCall, Arguments], tuple[Any, ...]],
) -> Module:
    """Return a module with the results of ``write`` in the place of calls that fit."""

    def rewritten(function: Function) -> Function:
        return rewrite_function(function, _Rewriting(DefUse(function), fits, write).step)

    return map_functions(module, rewritten)


@dataclass(frozen=True, slots=True)
class _Rewriting:
    """A function on its way. results: by the tuple of a call, what its fields have become."""

    uses: DefUse
    fits: Callable[[Arguments], bool]
    write: Callable[[OpCall, Arguments], tuple[Any, ...]]
    results: dict[Expr, tuple[Expr, ...]] = field(default_factory=dict)

    def step(self, binding: Binding) -> list[Binding] | Expr:
        """Return what takes the place of a binding."""
        value = binding.value
        if isinstance(value, TupleGetItem) and value.value in self.results:
            return self.results[value.value][value.index]
        call = op_call(value)
        if call is None or call.op not in (op.fused_attention, op.fused_attention_dx):
            return [binding]
        given = dict(zip(call.op.schema.names, call.args, strict=True))
        users = self.uses.users(binding.var)
        apart = all(isinstance(getattr(u, "value", None), TupleGetItem) for u in users)
        if not apart or not self.fits(given):
            return [binding]
        trace = Trace()
        trace.site = lambda: binding.span
        values = {n: trace.symbols(a) if isinstance(a, Expr) else a for n, a in given.items()}
        block = trace.finish(trace.run(self.write, call, values))
        assert isinstance(block.result, Tuple)
        self.results[binding.var] = block.result.fields
        return list(block.bindings)
