"""Counters that a program adds to, in one launch: those of batch norms, of which a network has
dozens.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from meta import op
from meta.base.dtype import SIGNED
from meta.dialect.core.ir_calls import called_op, full_view_source, new_call, op_call, tensor_of
from meta.ir import Binding, Call, Expr, Function, Module, Tuple, TupleType, Var
from meta.ir.visit import uses
from meta.passes.alias_analysis import AliasSets, AliasSummaries, owning_tuple
from meta.passes.dead_code import dead_code
from meta.passes.rewrite import with_main


def join_increments(module: Module) -> Module:
    """Let one call add to all arguments of main that get the sum of themselves and one int.

    Graphs of PyTorch's come functionalised: `add` makes a new array, which an `assign` copies back,
    two launches for each counter. They become one `multi_tensor_increment` for each dtype and int,
    in the place of the last `assign`; of a counter that is read in between, nothing changes.

    >>> from meta.ir import parse
    >>> print(meta.passes.join_increments(parse('''
    ... func @main(%n: int64[], %m: int64[]) {
    ...   %a: int64[] = add(%n, 1)
    ...   %b: int64[] = add(%m, 1)
    ...   %u: () = assign(%n, %a)
    ...   %v: () = assign(%m, %b)
    ...   return ()
    ... }''')))
    func @main(%n: int64[], %m: int64[]) {
      %v: () = multi_tensor_increment((%n, %m), by=1)
      return (,)
    }
    """
    main = module.main
    body = main.body.bindings
    if not any(called_op(b.value) is op.assign for b in body):
        return module
    if any(isinstance(b.value, Function) for b in body):
        return module  # a closure reads later than it is written down
    groups = _increments(main, AliasSets(main, AliasSummaries(module)))
    if not groups:
        return module
    joined = dict[Var, Binding]()
    for (_, by), assigns in groups.items():
        last = assigns[-1]
        counters = Tuple(tuple(_assigned(b)[0] for b in assigns))
        call = new_call(op.multi_tensor_increment, counters, by)
        joined[last.var] = Binding(Var(last.var.name, TupleType(())), call, last.span)
    dropped = {b.var for assigns in groups.values() for b in assigns}
    left = [joined.get(b.var, b) for b in body if b.var in joined or b.var not in dropped]
    return dead_code(with_main(module, left))


def _increments(main: Function, buffers: AliasSets) -> dict[tuple[str, int], list[Binding]]:
    """Return the assignments that may be joined, by the dtype and the int that is added."""
    values: dict[Expr, Expr] = {b.var: b.value for b in main.body.bindings}
    accesses = defaultdict[Expr, list[int]](list)  # by buffer
    writes = defaultdict[Expr, int](int)
    for i, binding in enumerate(main.body.bindings):
        for atom in uses(binding.value):
            accesses[owning_tuple(buffers.of(atom))].append(i)
        for buffer in buffers.written_by(binding):
            writes[owning_tuple(buffer)] += 1

    groups = defaultdict[tuple[str, int], list[Binding]](list)
    for i, binding in enumerate(main.body.bindings):
        call = op_call(binding.value)
        if call is None or call.op is not op.assign:
            continue
        counter, value = call.args
        by = _added_to(counter, value, values)
        alone = buffers.sharing({buffers.of(counter)}) == {counter}
        if by is None or counter not in main.params or not alone:
            continue
        # Nothing else writes it, and nothing reads it from here on, where it may not be new yet.
        if writes[counter] == 1 and accesses[counter][-1] == i:
            groups[tensor_of(counter).dtype, by].append(binding)
    return dict(groups)


def _assigned(binding: Binding) -> tuple[Any, ...]:
    call = op_call(binding.value)
    assert call is not None
    return call.args


def _added_to(counter: Expr, value: Expr, values: dict[Expr, Expr]) -> int | None:
    """Return the int of which ``value`` is the sum with the counter, if it is one."""
    while (made := values.get(value)) is not None:
        source = full_view_source(made) if isinstance(made, Call) else made
        if not isinstance(source, Var):
            break
        value = source
    call = op_call(values.get(value)) if value in values else None
    if call is None or call.op is not op.add or call.args[0] is not counter:
        return None
    by, (own, sum_) = call.args[1], map(tensor_of, (counter, value))
    return by if type(by) is int and own.dtype in SIGNED and own == sum_ else None
