"""Heads of key and value that serve several of query, repeated by the program and not by a kernel.

ATen's attention on the CPU wants a head of key and value for each of query. A kernel that repeats
them before it, and adds up their gradients behind it, does so by one thread; as operators they are
part of what makes key and value and of what reads the gradients.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from meta import op
from meta.base.device import Device
from meta.dialect.core.ir_calls import OpCall, op_call, tensor_of
from meta.ir import Binding, DefUse, Expr, Function, Module, Tuple, TupleGetItem
from meta.op.attention import HEADS_FIRST, heads_first
from meta.op.core.tracing import Trace
from meta.passes.rewrite import map_functions, rewrite_function

_WIDE = "float32", "float64"  # others are not to be rounded before they are added up


def repeat_shared_heads(module: Module, *, device: Device) -> Module:
    """Give `fused_attention` and its gradient on the CPU a head of key and value for each of query
    (grouped-query attention, arXiv:2305.13245), where there are several queries: one alone is
    computed without copies.

    >>> from meta.base.device import CPU
    >>> from meta.ir import parse
    >>> print(meta.passes.repeat_shared_heads(parse('''
    ... func @main(%q: float32[2, 4, 8, 16], %k: float32[2, 2, 8, 16]) -> float32[2, 4, 8, 16] {
    ...   %0: (float32[2, 4, 8, 16], float32[2, 4, 8]) = fused_attention(%q, %k, %k)
    ...   %1: float32[2, 4, 8, 16] = %0.0
    ...   return %1
    ... }'''), device=CPU).main.body.bindings[0])
    %0: float32[2, 4, 8, 16] = repeat(%k, repeats=2, axis=1)
    """
    return map_functions(module, _function) if device.kind == "cpu" else module


def _function(function: Function) -> Function:
    return rewrite_function(function, _Rewriting(DefUse(function)).step)


@dataclass(frozen=True, slots=True)
class _Rewriting:
    """A function on its way. results: by the tuple of a call, what its fields have become."""

    uses: DefUse
    results: dict[Expr, tuple[Expr, ...]] = field(default_factory=dict)

    def step(self, binding: Binding) -> list[Binding] | Expr:
        """Return what takes the place of a binding."""
        value = binding.value
        if isinstance(value, TupleGetItem) and value.value in self.results:
            return self.results[value.value][value.index]
        call = op_call(value)
        if call is None or call.op not in (op.fused_attention, op.fused_attention_dx):
            return [binding]
        users = self.uses.users(binding.var)
        apart = all(isinstance(getattr(u, "value", None), TupleGetItem) for u in users)
        if not apart or not _is_shared(call):
            return [binding]
        trace = Trace()
        trace.site = lambda: binding.span
        block = trace.finish(trace.run(_with_own_heads, trace, call))
        assert isinstance(block.result, Tuple)
        self.results[binding.var] = block.result.fields
        return list(block.bindings)


def _is_shared(call: OpCall) -> bool:
    """Whether heads are shared by several queries in a call that one kernel of ATen's serves."""
    given = dict(zip(call.op.schema.names, call.args, strict=True))
    if given["slopes"] is not None or given["dropout_key"] is not None:
        return False
    query, key = (heads_first(tensor_of(given[n]), given["layout"]) for n in ("query", "key"))
    if not key.is_static or query.dtype not in _WIDE:
        return False
    groups, heads, queries = key.static_shape[1], *query.shape[1:3]
    if not isinstance(heads, int) or not isinstance(queries, int):
        return False
    return queries > 1 and 0 < groups < heads


def _with_own_heads(trace: Trace, call: OpCall) -> Any:
    """Return the results of a call of which no head is shared."""
    names = call.op.schema.names
    given = {
        n: trace.symbols(a) if isinstance(a, Expr) else a
        for n, a in zip(names, call.args, strict=True)
    }
    axis = 1 if given["layout"] == HEADS_FIRST else 2
    groups = given["key"].shape[axis]
    times = given["query"].shape[axis] // groups
    own = {n: op.repeat(given[n], times, axis) for n in ("key", "value")}
    results = call.op(**(given | own))
    if call.op is op.fused_attention:
        return tuple(results)
    dq, *others = results
    return dq, *(_sum_of_heads(d, groups, times, axis) for d in others)


def _sum_of_heads(d: Any, groups: int, times: int, axis: int) -> Any:
    """Return the sums of gradients over the heads that were one."""
    shape = (*d.shape[:axis], groups, times, *d.shape[axis + 1 :])
    return op.sum(op.reshape(d, shape), axis + 1)
