"""Updates of all parameters at once, taken apart again: memory for launches; and those of small
parameters put together again, where that memory is to be had.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

from meta import op
from meta.dialect.core.ir_calls import called_op, named_args, new_call
from meta.ir import (
    Binding,
    Call,
    Expr,
    Module,
    TensorType,
    Tuple,
    TupleType,
    Var,
    type_bytes,
    type_of,
)
from meta.op.core import Op
from meta.op.core.update import OPTIMIZERS, RATES
from meta.passes.rewrite import with_main

SMALL_SHARE = 1 / 64
"""Share of all parameters' bytes up to which `join_small_updates` joins the smallest of them."""


def split_updates(module: Module) -> Module:
    """Update each parameter of main by a call of its own.

    An update of all parameters waits for all gradients, which are in memory together then. Apart,
    each can follow its gradient (`memory_schedule`). `rematerialize` asks for it where a budget is
    not met otherwise.

    >>> from meta.ir import parse
    >>> print(meta.passes.split_updates(parse('''
    ... func @main(%x: float32[2], %y: float32[3], %r: float32[2], %g: float32[2], %h: float32[3]) {
    ...   %u: () = multi_tensor_sgd((%x, %y), (%g, %h), (), %r)
    ...   return ()
    ... }''')))
    func @main(%x: float32[2], %y: float32[3], %r: float32[2], %g: float32[2], %h: float32[3]) {
      %learning_rate: float32[1] = strided_slice(%r, begin=(0,), end=(1,))
      %u: () = multi_tensor_sgd((%x,), (%g,), v=(), learning_rate=%learning_rate)
      %learning_rate_1: float32[1] = strided_slice(%r, begin=(1,), end=(2,))
      %u_1: () = multi_tensor_sgd((%y,), (%h,), v=(), learning_rate=%learning_rate_1)
      return (,)
    }
    """
    return with_main(module, [one for b in module.main.body.bindings for one in _split(b)])


def _split(binding: Binding) -> Iterator[Binding]:
    call = binding.value
    update = _update(call)
    if update is None:
        yield binding
        return
    assert isinstance(call, Call)
    args = named_args(update, call)
    count = len(args["x"].fields)
    for i in range(count):
        own: dict[str, Expr] = {
            n: Tuple(a.fields[i : i + 1]) for n, a in args.items() if isinstance(a, Tuple)
        }
        for name in RATES:
            type_ = type_of(args[name]) if not isinstance(args[name], int | float) else None
            if isinstance(type_, TensorType) and count > 1 and type_.shape == (count,):
                own[name] = rate = Var(name, type_.with_shape((1,)))
                part = new_call(op.strided_slice, args[name], (i,), (i + 1,))
                yield Binding(rate, part, binding.span)
        var = binding.var if i == count - 1 else Var(binding.var.name, TupleType(()))
        each = tuple(own.get(name, args[name]) for name in update.schema.names)
        yield Binding(var, Call(call.callee, each), binding.span)


def join_small_updates(module: Module) -> Module:
    """Update the small ones of the parameters that are updated one after another by one call.

    The gradients of biases and scales may wait for one another: they take next to no memory, while
    a call takes its time, however little it does. `rematerialize` asks for it in the end.

    >>> from meta.ir import parse
    >>> print(join_small_updates(parse('''
    ... func @main(%x: float32[], %y: float32[999], %z: float32[],
    ...            %g: float32[], %h: float32[999]) {
    ...   %u: () = multi_tensor_sgd((%x,), (%g,), (), 0.5)
    ...   %v: () = multi_tensor_sgd((%y,), (%h,), (), 0.5)
    ...   %w: () = multi_tensor_sgd((%z,), (%g,), (), 0.5)
    ...   return ()
    ... }''')))
    func @main(%x: float32[], %y: float32[999], %z: float32[], %g: float32[], %h: float32[999]) {
      %v: () = multi_tensor_sgd((%y,), (%h,), v=(), learning_rate=0.5)
      %w: () = multi_tensor_sgd((%x, %z), (%g, %g), v=(), learning_rate=0.5)
      return (,)
    }
    """
    bindings = list[Binding]()
    for kind, alike in groupby(module.main.body.bindings, _join_key):
        run = list(alike)
        bindings += run if kind is None else _join(run)
    return with_main(module, bindings)


def _join_key(binding: Binding) -> tuple[Any, ...] | None:
    """Return what updates have in common that may be one: the operator and the other arguments."""
    call = binding.value
    update = _update(call)
    if update is None:
        return None
    assert isinstance(call, Call)
    return update, *(
        "list" if isinstance(a, Tuple) else a if isinstance(a, Var) else repr(a) for a in call.args
    )


def _update(value: Expr) -> Op | None:
    """Return the operator of an update of parameters that are listed in the program; else None."""
    called = called_op(value)
    if called not in OPTIMIZERS:
        return None
    assert isinstance(value, Call) and called is not None
    slots = zip(called.slots, value.args, strict=True)
    values = any(isinstance(a, Var) for slot, a in slots if slot.kind == "tensors")
    return None if values else called


def _join(updates: list[Binding]) -> list[Binding]:
    """Return updates of one kind, the small ones as one call behind the others."""
    calls = {b.var: b.value for b in updates if isinstance(b.value, Call)}
    sizes = {var: type_bytes(type_of(call.args[0])) for var, call in calls.items()}
    room = SMALL_SHARE * sum(sizes.values())
    small = set[Var]()
    for var in sorted(sizes, key=sizes.__getitem__):
        room -= sizes[var]
        if room >= 0:
            small.add(var)
    if len(small) < 2:
        return updates
    columns = zip(*(call.args for var, call in calls.items() if var in small), strict=True)
    args = tuple(
        Tuple(tuple(field for part in column for field in part.fields))
        if isinstance(column[0], Tuple)
        else column[0]
        for column in columns
    )
    last = next(b for b in reversed(updates) if b.var in small)
    joined = replace(last, value=Call(calls[last.var].callee, args))
    return [*(b for b in updates if b.var not in small), joined]
