"""Tensor parallelism: a program for one device becomes one in which each rank has parts of its
parameters.
"""

from __future__ import annotations

from collections.abc import Mapping

from meta.base.device import CPU, Device
from meta.base.dtype import is_float
from meta.ir import Function, Module, TensorType, type_of
from meta.op.core.tracing import Trace
from meta.passes.call_graph import remove_unreachable
from meta.passes.deduplicate import eliminate_common_subexpressions
from meta.passes.distributed import sharding_layers, sharding_rules
from meta.passes.distributed.sharder import Sharder
from meta.passes.distributed.sharding import (
    InsertedCollective,
    Ranks,
    ShardAxis,
    ShardedValue,
    map_shards,
)

# The modules that state rules, by importing them.
RULE_MODULES = (sharding_rules, sharding_layers)


def tensor_parallel(
    module: Module,
    *,
    over: str,
    size: int,
    cuts: Mapping[int, tuple[int, int]],
    device: Device = CPU,
    exchanges: list[InsertedCollective] | None = None,
) -> Module:
    """Compute with the parts of parameters that a rank has, and exchange what must be whole.

    over, size: the axis of the mesh, and its ranks. cuts: by the number of a parameter of main that
    is cut, its axis, and how many arrays lie one after the other along it, of which each is cut.
    The others are the same on all ranks, and so are the results. exchanges: what was put in is
    added to it. All ranks draw the same random numbers, but for those of parts. Raises
    DistributedError for a program that writes to what is cut, or exchanges along the axis itself.

    >>> from meta.ir import parse
    >>> print(tensor_parallel(parse('''
    ... func @main(%x: float32[2, 4], %a: float32[8, 4], %b: float32[4, 8]) -> float32[2, 4] {
    ...   %h: float32[2, 8] = dense(%x, %a)
    ...   %r: float32[2, 8] = relu(%h)
    ...   %y: float32[2, 4] = dense(%r, %b)
    ...   return %y
    ... }'''), over="tp", size=2, cuts={1: (0, 1), 2: (1, 1)}))
    func @main(%x: float32[2, 4], %a: float32[4, 4], %b: float32[4, 4]) -> float32[2, 4] {
      %0: float32[2, 4] = copy_to(%x, over="tp", size=2)
      %1: float32[2, 4] = dense(%0, %a)
      %2: float32[2, 4] = relu(%1)
      %3: float32[2, 4] = dense(%2, %b)
      %4: float32[2, 4] = reduce_from(%3, over="tp", size=2)
      return %4
    }
    """
    # What several layers are given is one value: its gradients are summed over the ranks once.
    module = eliminate_common_subexpressions(module)
    trace, ranks = Trace(device), Ranks(over, size, str(device))
    sharder = Sharder(module, trace, ranks)
    params = []
    for number, param in enumerate(module.main.params):
        type_ = whole = param.type
        cut = ShardAxis(*cuts[number]) if number in cuts else None
        if cut is not None:
            assert isinstance(whole, TensorType)
            type_ = whole.with_shape(cut.local(whole.shape, size))
        assert type_ is not None
        var, value = trace.parameter(type_, param.name)
        params.append(var)
        floats = isinstance(whole, TensorType) and is_float(whole.dtype)
        tuples = isinstance(value, tuple)
        sharder.known[param] = value if tuples else ShardedValue(value, whole, cut, floats)
    result = trace.run(sharder.block, module.main.body)
    why = "it is a result"
    wholes = trace.run(map_shards, result, lambda p: ranks.whole(p, why).value)
    body = trace.finish(wholes)
    main = Function(tuple(params), body, type_of(body.result), dict(module.main.attrs))
    if exchanges is not None:
        exchanges += ranks.exchanges
    return remove_unreachable(Module({"main": main, **trace.functions}, module.types))
