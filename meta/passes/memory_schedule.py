"""An order of evaluation in which less memory is in use at the worst moment."""

from __future__ import annotations

from dataclasses import replace
from graphlib import TopologicalSorter
from heapq import heappop, heappush

from meta import op
from meta.dialect.core.ir_calls import called_op
from meta.ir import Binding, Block, Function, GraphNode, Module, operands, to_graph
from meta.ir.visit import uses
from meta.op.core.update import OPTIMIZERS
from meta.passes.distributed.overlap import STARTS
from meta.passes.effects import Effects
from meta.passes.liveness import Liveness
from meta.passes.rewrite import map_functions, with_inner_blocks, with_value


def memory_schedule(module: Module) -> Module:
    """Reorder bindings so that memory is freed early and taken late.

    Each block is scheduled by itself, greedily: of the bindings whose operands are there, the one
    that takes least (its results, less what it reads for the last time) comes next; of equals, the
    first in the program. In a second order only what takes nothing is preferred, and the rest comes
    as in the program. That order counts, of the three with the program's own, whose worst moments
    are the least. What is written in place moves too, so that the update of a parameter comes as
    soon as its gradient is there: nothing passes a write to what it reads or writes, nothing passes
    a call of a function, and random calls keep their order (`Effects`).

    A training step whose gradients are reduced in place keeps its order: there a reduction begins
    as soon as it can, beside the rest of the backward pass (`bucket_collectives`), where the least
    memory would have casts and reductions wait for its end. Where `split_updates`, or parts of
    gradients on each rank, save memory, that comes first.

    >>> from meta.ir import parse
    >>> print(meta.passes.memory_schedule(parse('''
    ... func @main(%x: float32[64]) -> float32[64] {
    ...   %a: float32[64] = exp(%x)
    ...   %b: float32[64] = tanh(%x)
    ...   %c: float32[] = sum(%a)
    ...   %d: float32[] = sum(%b)
    ...   %e: float32[] = add(%c, %d)
    ...   %f: float32[64] = add(%x, %e)
    ...   return %f
    ... }''')))
    func @main(%x: float32[64]) -> float32[64] {
      %a: float32[64] = exp(%x)
      %c: float32[] = sum(%a)
      %b: float32[64] = tanh(%x)
      %d: float32[] = sum(%b)
      %e: float32[] = add(%c, %d)
      %f: float32[64] = add(%x, %e)
      return %f
    }
    """
    if _exchanges_gradients(module.main):
        return map_functions(module, lambda f: f if f is module.main else _function(f, module))
    return map_functions(module, lambda f: _function(f, module))


MANY_UPDATES = 8
"""From so many calls on, updates are apart to save memory."""


def _exchanges_gradients(main: Function) -> bool:
    called = [called_op(b.value) for b in main.body.bindings]
    updates = sum(one in OPTIMIZERS for one in called)
    exchanges = {one for one in called if one in STARTS}
    # What is gathered where it lies takes no memory, whenever that is.
    exchanges.discard(op.multi_tensor_all_gather_in_place)
    return 0 < updates < MANY_UPDATES and exchanges == {op.multi_tensor_all_reduce}


def _function(function: Function, module: Module) -> Function:
    orders = [
        replace(function, body=_Order(function, module, eager).block(function.body))
        for eager in (True, False)
    ]
    # The first of the least: the order of the program before a new one. Of equal peaks, the bytes
    # at the next worst moments count.
    return min(
        (function, *orders),
        key=lambda order: sorted(Liveness(order, module).live_bytes(), reverse=True),
    )


class _Order:
    """A greedy order of one function; ``eager``: only what takes nothing comes early."""

    def __init__(self, function: Function, module: Module, eager: bool) -> None:
        self._module, self._eager = module, eager
        self._live = Liveness(function, module)
        self._effects = Effects(function, self._live)
        self._made = {var: set(made) for var, made in self._live.made().items()}

    def block(self, block: Block) -> Block:
        """Return a block of the function in the new order."""
        nodes = to_graph(block, self._effects.places)
        needed = {node: self._needed(node.binding) for node in nodes}
        # By buffer, who still needs it: nodes, and the block for its result.
        users: dict[int, set[GraphNode | Block]] = {}
        for node, buffers in needed.items():
            for buffer in buffers:
                users.setdefault(buffer, set()).add(node)
        for buffer in {n for atom in operands(block.result) for n in self._live.of(atom)}:
            users.setdefault(buffer, set()).add(block)
        own = {buffer for node in nodes for buffer in self._makes(node)}

        def net(node: GraphNode) -> int:
            """Bytes that a binding adds to what is in use, once it is evaluated."""
            ended = {n for n in needed[node] & own if users[n] == {node}}
            unused = {n for n in self._makes(node) if n not in users}
            added = self._bytes(self._makes(node)) - self._bytes(ended | unused)
            return min(added, 1) if self._eager else added

        order = TopologicalSorter({node: (*node.inputs, *node.after) for node in nodes})
        order.prepare()
        # What a binding adds only falls, when it becomes the last to need a buffer: it is then
        # entered once more, and of its entries the least comes first.
        ready: list[tuple[int, int]] = []
        entered: set[GraphNode] = set()
        made: dict[GraphNode, Binding] = {}
        while order.is_active():
            for node in order.get_ready():
                entered.add(node)
                heappush(ready, (net(node), node.position))
            chosen = nodes[heappop(ready)[1]]
            if chosen in made:
                continue
            made[chosen] = self._with_inner_blocks(chosen.binding)
            for buffer in needed[chosen]:
                users[buffer].discard(chosen)
                if len(users[buffer]) == 1:
                    (last,) = users[buffer]
                    if isinstance(last, GraphNode) and last in entered:
                        heappush(ready, (net(last), last.position))
            order.done(chosen)
        return Block(tuple(made.values()), block.result)

    def _makes(self, node: GraphNode) -> set[int]:
        return self._made.get(node.binding.var, set())

    def _needed(self, binding: Binding) -> set[int]:
        return {number for atom in uses(binding.value) for number in self._live.of(atom)}

    def _bytes(self, buffers: set[int]) -> int:
        return sum(self._live.buffers[b].size for b in buffers)

    def _with_inner_blocks(self, binding: Binding) -> Binding:
        if isinstance(binding.value, Function):
            return with_value(binding, _function(binding.value, self._module))
        return with_inner_blocks(binding, self.block)
