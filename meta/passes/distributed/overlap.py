"""Overlap: which collectives of a program can go on beside other work, from where to where."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meta import op
from meta.dialect.core.ir_calls import called_op, new_call, view_source
from meta.ir import (
    Binding,
    Call,
    Expr,
    GraphNode,
    Module,
    Tuple,
    TupleGetItem,
    TupleType,
    Var,
    operands,
    to_graph,
    type_bytes,
    type_of,
)
from meta.passes.effects import Effects
from meta.passes.liveness import Liveness

STARTS = {
    op.multi_tensor_all_reduce: op.multi_tensor_all_reduce_start,
    op.multi_tensor_all_gather_in_place: op.multi_tensor_all_gather_in_place_start,
    op.all_gather: op.all_gather_start,
    op.multi_tensor_all_gather: op.multi_tensor_all_gather_start,
    op.reduce_scatter: op.reduce_scatter_start,
    op.multi_tensor_reduce_scatter: op.multi_tensor_reduce_scatter_start,
}
"""By collective, the operator that begins it."""
IN_PLACE = op.multi_tensor_all_reduce_start, op.multi_tensor_all_gather_in_place_start
"""Those that write to their first argument."""
GATHERS = op.all_gather, op.multi_tensor_all_gather


@dataclass(eq=False)
class Overlap:
    """A collective by the number of its binding: what starts it behind binding ``begin``, and what
    waits for it before binding ``end``; whether work can run beside it. bytes: of the memory that
    it holds meanwhile. is_apart: whether what it returns is other memory than what it is given.
    casts: the numbers of bindings that come with the start, as nothing else reads them.
    """

    at: int
    begin: int
    end: int
    values: Expr
    bytes: int
    start: Binding
    wait: Binding
    has_work: bool
    is_apart: bool
    casts: frozenset[int] = frozenset()

    @property
    def is_gather(self) -> bool:
        """Whether the result is larger than what is given, which is waited for late then."""
        return self.is_apart and type_bytes(type_of(self.values)) == self.bytes


def overlaps_of(module: Module) -> Iterator[Overlap]:
    """Yield the collectives of main that can be apart."""
    main = module.main
    if not any(called_op(b.value) in STARTS for b in main.body.bindings):
        return
    nodes = to_graph(main.body, Effects(main, Liveness(main, module)).places)
    # A view reads nothing: who reads it does.
    first_after = [len(nodes)] * len(nodes)
    for node in reversed(nodes):
        at = first_after[node.position] if is_view(node.binding) else node.position
        for before in (*node.inputs, *node.after):
            first_after[before.position] = min(first_after[before.position], at)
    split = set[int]()
    followers: list[list[int]] = [[] for _ in nodes]
    for node in nodes:
        for one in {*node.inputs, *node.after}:
            followers[one.position].append(node.position)
    leaving = set(operands(main.body.result))
    for node in nodes:
        call = node.binding.value
        start = STARTS.get(called_op(call))
        if start is None or not isinstance(call, Call) or call.args[2] == 1:
            continue
        casts = {n for n in _casts(node, followers) if n.binding.var not in leaving}
        inputs = [i for n in node.inputs for i in (n.inputs if n in casts else (n,))]
        needed = {n.position for n in (*inputs, *node.after, *(a for c in casts for a in c.after))}
        # What another one is needed for comes where it is, behind the wait.
        begin = node.position if needed & split else max(needed, default=-1)
        end = first_after[node.position]
        own = {node.position, *(cast.position for cast in casts)}
        beside = (nodes[i].binding for i in range(begin + 1, end) if i not in own)
        has_work = any(map(is_work, beside))
        if has_work:
            split.add(node.position)
        values, over, size = call.args[:3]
        var, span = node.binding.var, node.binding.span
        # What is gathered where it lies is the caller's memory: that is there anyway.
        kept = start is op.multi_tensor_all_gather_in_place_start
        count = 0 if kept else type_bytes(type_of(values))
        wait = new_call(op.collective_wait, values, over, size)
        if start not in IN_PLACE:
            given = values if isinstance(values, Tuple) else Tuple((values,))
            values = var if isinstance(var.type, TupleType) else Tuple((var,))
            count = max(count, type_bytes(var.type))
            wait = new_call(op.collective_wait, values, over, size, given)
        yield Overlap(
            *(node.position, begin, end, values, count),
            Binding(var, Call(start, call.args), span),
            Binding(Var("wait", TupleType(())), wait, span),
            has_work,
            start not in IN_PLACE,
            frozenset(cast.position for cast in casts),
        )


def _casts(node: GraphNode, followers: list[list[int]]) -> set[GraphNode]:
    """Return the casts that nothing before a gather, nor anything else, needs: of parts of
    parameters, which are gathered narrow and written when they are updated.
    """
    if called_op(node.binding.value) not in GATHERS:
        return set()
    casts = {one for one in node.inputs if called_op(one.binding.value) is op.astype}
    return {one for one in casts if min(followers[one.position]) == node.position}


def is_work(binding: Binding) -> bool:
    """Whether a binding takes time: it launches a kernel that is no collective, or calls others."""
    call = binding.value
    if not isinstance(call, Call):
        return bool(call.spec.blocks)
    return called_op(call) not in STARTS and not is_view(binding)


def is_view(binding: Binding) -> bool:
    """Whether a binding is one memory seen otherwise, or a field of a tuple."""
    call = binding.value
    return isinstance(call, TupleGetItem) or (
        isinstance(call, Call) and view_source(call) is not None
    )
