"""Heads of key and value that serve several of query, repeated by the program and not by a kernel.

ATen's attention on the CPU wants a head of key and value for each of query. A kernel that repeats
them before it, and adds up their gradients behind it, does so by one thread; as operators they are
part of what makes key and value and of what reads the gradients.
"""

from __future__ import annotations

from typing import Any

from meta import op
from meta.base.device import Device
from meta.dialect.core.ir_calls import OpCall, tensor_of
from meta.ir import Module
from meta.op.attention import HEADS_FIRST, heads_first
from meta.passes.attention.rewriting import Arguments, rewrite_attention

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
    if device.kind != "cpu":
        return module
    return rewrite_attention(module, _is_shared, _with_own_heads)


def _is_shared(given: Arguments) -> bool:
    """Whether heads are shared by several queries in a call that one kernel of ATen's serves."""
    if given["slopes"] is not None or given["dropout_key"] is not None:
        return False
    query, key = (heads_first(tensor_of(given[n]), given["layout"]) for n in ("query", "key"))
    if not key.is_static or query.dtype not in _WIDE:
        return False
    groups, heads, queries = key.static_shape[1], *query.shape[1:3]
    if not isinstance(heads, int) or not isinstance(queries, int):
        return False
    return queries > 1 and 0 < groups < heads


def _with_own_heads(call: OpCall, given: Arguments) -> tuple[Any, ...]:
    """Return the results of a call of which no head is shared."""
    axis = 1 if given["layout"] == HEADS_FIRST else 2
    groups = given["key"].shape[axis]
    times = given["query"].shape[axis] // groups
    own = {n: op.repeat(given[n], times, axis) for n in ("key", "value")}
    results = call.op(**{**given, **own})
    if call.op is op.fused_attention:
        return tuple(results)
    dq, *others = results
    return dq, *(_sum_of_heads(d, groups, times, axis) for d in others)


def _sum_of_heads(d: Any, groups: int, times: int, axis: int) -> Any:
    """Return the sums of gradients over the heads that were one."""
    shape = (*d.shape[:axis], groups, times, *d.shape[axis + 1 :])
    return op.sum(op.reshape(d, shape), axis + 1)
