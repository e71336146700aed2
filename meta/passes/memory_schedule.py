"""An order of evaluation in which less memory is in use at the worst moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meta.ir import Binding, Block, Function, If, Module, Var, bindings, operands
from meta.ir.visit import inner_blocks
from meta.passes.call_of import is_pure
from meta.passes.effects import may_write_anything, reads, written
from meta.passes.lifetimes import Lifetimes, Memory, is_fused


def memory_schedule(module: Module) -> Module:
    """Reorder pure bindings so that memory is freed early and taken late.

    Each block is scheduled by itself, greedily: of the bindings whose operands are there, the one
    that takes least (its results, less what it reads for the last time) comes next; of equals, the
    first in the program. In a second order only what takes nothing is preferred, and the rest comes
    as in the program. That order counts, of the three with the program's own, whose worst moments
    are the least. Calls with effects and random calls keep their order among themselves; nothing
    passes a call of a function, or a write to what it reads.

    >>> from meta.ir import parse
    >>> print(memory_schedule(parse('''
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
    return Module({name: _function(f, module) for name, f in module.functions.items()})


def _function(function: Function, module: Module) -> Function:
    live = Lifetimes(function, module)
    orders = [replace(function, body=_block(function.body, live, module, e)) for e in (True, False)]
    # The first of the least: the order of the program before a new one.
    return min((function, *orders), key=lambda order: _worst_moments(order, module))


def _worst_moments(function: Function, module: Module) -> list[int]:
    """Return the bytes in use at each moment, the most first: orders with one peak differ too,
    since what is written in place later may take that peak away.
    """
    return sorted(Lifetimes(function, module).live_bytes(), reverse=True)


def _block(block: Block, live: Lifetimes, module: Module, eager: bool) -> Block:
    items = [_with_inner_blocks(b, live, module, eager) for b in block.bindings]
    before = _must_precede(block.bindings, live)
    takes, uses = _costs(block, live)
    users: dict[int, set[int]] = {}
    for i, used in enumerate(uses):
        for buffer in used:
            users.setdefault(buffer, set()).add(i)
    for atom in operands(block.result):
        for buffer in live.of(atom):
            users.setdefault(buffer, set()).add(len(items))
    after: list[list[int]] = [[] for _ in items]
    for i, earlier in enumerate(before):
        for j in earlier:
            after[j].append(i)
    waits = [len(earlier) for earlier in before]
    own = {buffer for born in takes for buffer in born}

    def net(i: int) -> int:
        """Bytes that a binding adds to what is in use, once it is evaluated."""
        freed = {b for b in uses[i] | takes[i] if b in own and users.get(b, {i}) <= {i}}
        added = _bytes(takes[i], live) - _bytes(freed, live)
        return min(added, 1) if eager else added

    ready = [i for i, count in enumerate(waits) if not count]
    order: list[int] = []
    while ready:
        chosen = min(ready, key=lambda i: (net(i), i))
        ready.remove(chosen)
        order.append(chosen)
        for buffer in uses[chosen]:
            users[buffer].discard(chosen)
        for i in after[chosen]:
            waits[i] -= 1
            if not waits[i]:
                ready.append(i)
    return Block(tuple(items[i] for i in order), block.result)


def _bytes(buffers: set[int], live: Lifetimes) -> int:
    return sum(live.buffers[b].size for b in buffers)


def _with_inner_blocks(binding: Binding, live: Lifetimes, module: Module, eager: bool) -> Binding:
    value = binding.value
    if isinstance(value, If):
        blocks = (_block(b, live, module, eager) for b in (value.then_block, value.else_block))
        return replace(binding, value=If(value.condition, *blocks))
    if isinstance(value, Function):
        return replace(binding, value=_function(value, module))
    return binding


def _costs(block: Block, live: Lifetimes) -> tuple[list[set[int]], list[set[int]]]:
    """Return for each binding the buffers that it makes and those that it uses."""
    made_by: dict[Var, set[int]] = {}
    for number, buffer in enumerate(live.buffers):
        made_by.setdefault(live.bindings[buffer.binding].var, set()).add(number)
    takes = [made_by.get(b.var, set()) for b in block.bindings]
    uses = [{n for atom in reads(b) for n in live.of(atom)} for b in block.bindings]
    return takes, uses


def _must_precede(items: Sequence[Binding], live: Lifetimes) -> list[set[int]]:
    """Return for each binding those before which it cannot be evaluated."""
    before: list[set[int]] = []
    position = {b.var: i for i, b in enumerate(items)}
    readers: dict[Memory, list[int]] = {}
    writer: dict[Memory, int] = {}
    ordered = barrier = -1
    for i, binding in enumerate(items):
        read = {m for atom in reads(binding) for m in live.memory(atom)}
        needed = {position[a] for a in reads(binding) if isinstance(a, Var) and a in position}
        needed |= {writer[m] for m in read if m in writer}
        if barrier >= 0:
            needed.add(barrier)
        if _stays(binding, live):
            needed.add(ordered)
            ordered = i
        if may_write_anything(binding, live):
            needed |= set(range(barrier + 1, i))
            barrier = i
        for memory in written(binding, live):
            needed.update(readers.get(memory, ()))
            writer[memory] = i
        for memory in read:
            readers.setdefault(memory, []).append(i)
        before.append(needed - {-1, i})
    return before


def _stays(binding: Binding, live: Lifetimes) -> bool:
    """Whether a binding keeps its place among others that do."""
    inner = (b for block in inner_blocks(binding.value) for b in bindings(block))
    return any(not is_pure(b) and not is_fused(b.value, live.module) for b in (binding, *inner))
