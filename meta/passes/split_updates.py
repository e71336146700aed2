"""Updates of all parameters at once, taken apart again: memory for launches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from meta.ir import Binding, Block, Call, Module, TensorType, Tuple, TupleType, Var, type_of
from meta.passes.call_of import base_op
from meta.passes.rules.table import call as operator_call

UPDATES = frozenset(f"multi_tensor_{name}" for name in ("sgd", "adam", "adamw", "lamb", "lans"))
RATES = "learning_rate", "weight_decay"


def split_updates(module: Module) -> Module:
    """Update each parameter of main by a call of its own.

    An update of all parameters waits for all gradients, which are in memory together then. Apart,
    each can follow its gradient (`memory_schedule`). `rematerialize` asks for it where a budget is
    not met otherwise.

    >>> from meta.ir import parse
    >>> print(split_updates(parse('''
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
    main = module.main
    bindings = tuple(one for b in main.body.bindings for one in _split(b))
    body = Block(bindings, main.body.result)
    return module.with_functions({**module.functions, "main": replace(main, body=body)})


def _split(binding: Binding) -> Iterator[Binding]:
    call = binding.value
    op = base_op(call.callee) if isinstance(call, Call) else None
    if not isinstance(call, Call) or op is None or op.name not in UPDATES:
        yield binding
        return
    args: dict[str, Any] = dict(zip(op.schema.names, call.args, strict=True))
    if any(isinstance(args[s.name], Var) for s in op.schema.slots if s.kind == "tensors"):
        yield binding  # a list that is a value of the program is not taken apart
        return
    count = len(args["x"].fields)
    for i in range(count):
        own = {n: Tuple(a.fields[i : i + 1]) for n, a in args.items() if isinstance(a, Tuple)}
        for name in RATES:
            type_ = type_of(args[name]) if not isinstance(args[name], int | float) else None
            if isinstance(type_, TensorType) and count > 1 and type_.shape == (count,):
                own[name] = Var(name, type_.with_shape((1,)))
                part = operator_call("strided_slice", args[name], (i,), (i + 1,))
                yield Binding(own[name], part, binding.span)
        var = binding.var if i == count - 1 else Var(binding.var.name, TupleType(()))
        each = tuple(own.get(name, args[name]) for name in op.schema.names)
        yield Binding(var, Call(call.callee, each), binding.span)
