"""An order of evaluation in which less memory is in use at the worst moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meta.ir import (
    Binding,
    Block,
    Call,
    Expr,
    Function,
    If,
    Module,
    Var,
    bindings,
    free_vars,
    operands,
)
from meta.ir.visit import inner_blocks
from meta.passes.call_of import base_op, flat_atoms, has_effect, is_pure
from meta.passes.liveness import Liveness, Memory, is_fused


def memory_schedule(module: Module) -> Module:
    """Reorder pure bindings so that memory is freed early and taken late.

    Each block is scheduled by itself, greedily: of the bindings whose operands are there, the one
    that takes least (its results, less what it reads for the last time) comes next; of equals, the
    first in the program. Calls with effects and random calls keep their order among themselves;
    nothing passes a call of a function, or a write to what it reads. A function whose peak does
    not sink keeps its order.

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


def peak(function: Function, module: Module) -> int:
    """Return the bytes in use at a function's worst moment."""
    return max(Liveness(function, module).live_bytes(), default=0)


def _function(function: Function, module: Module) -> Function:
    scheduled = replace(function, body=_block(function.body, Liveness(function, module), module))
    return scheduled if peak(scheduled, module) < peak(function, module) else function


def _block(block: Block, live: Liveness, module: Module) -> Block:
    items = [_with_inner_blocks(b, live, module) for b in block.bindings]
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
        return _bytes(takes[i], live) - _bytes(freed, live)

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


def _bytes(buffers: set[int], live: Liveness) -> int:
    return sum(live.buffers[b].size for b in buffers)


def _with_inner_blocks(binding: Binding, live: Liveness, module: Module) -> Binding:
    value = binding.value
    if isinstance(value, If):
        blocks = (_block(b, live, module) for b in (value.then_block, value.else_block))
        return replace(binding, value=If(value.condition, *blocks))
    if isinstance(value, Function):
        return replace(binding, value=_function(value, module))
    return binding


def _costs(block: Block, live: Liveness) -> tuple[list[set[int]], list[set[int]]]:
    """Return for each binding the buffers that it makes and those that it uses."""
    made_by: dict[Var, set[int]] = {}
    for number, buffer in enumerate(live.buffers):
        made_by.setdefault(live.bindings[buffer.binding].var, set()).add(number)
    takes = [made_by.get(b.var, set()) for b in block.bindings]
    uses = [{n for atom in _reads(b) for n in live.of(atom)} for b in block.bindings]
    return takes, uses


def _reads(binding: Binding) -> list[Expr]:
    """Return the atoms that a binding uses, its blocks included."""
    inner = [v for block in inner_blocks(binding.value) for v in free_vars(block)]
    return [*operands(binding.value), *inner]


def _must_precede(items: Sequence[Binding], live: Liveness) -> list[set[int]]:
    """Return for each binding those before which it cannot be evaluated."""
    before: list[set[int]] = []
    position = {b.var: i for i, b in enumerate(items)}
    readers: dict[Memory, list[int]] = {}
    writer: dict[Memory, int] = {}
    ordered = barrier = -1
    for i, binding in enumerate(items):
        reads = {m for atom in _reads(binding) for m in live.memory(atom)}
        needed = {position[a] for a in _reads(binding) if isinstance(a, Var) and a in position}
        needed |= {writer[m] for m in reads if m in writer}
        if barrier >= 0:
            needed.add(barrier)
        if _stays(binding, live):
            needed.add(ordered)
            ordered = i
        if _is_barrier(binding, live):
            needed |= set(range(barrier + 1, i))
            barrier = i
        for memory in _written(binding, live):
            needed.update(readers.get(memory, ()))
            writer[memory] = i
        for memory in reads:
            readers.setdefault(memory, []).append(i)
        before.append(needed - {-1, i})
    return before


def _stays(binding: Binding, live: Liveness) -> bool:
    """Whether a binding keeps its place among others that do."""
    inner = (b for block in inner_blocks(binding.value) for b in bindings(block))
    return any(not is_pure(b) and not is_fused(b.value, live.module) for b in (binding, *inner))


def _is_barrier(binding: Binding, live: Liveness) -> bool:
    """Whether it may write to anything: a call of a function, or an `If` with an effect."""
    if isinstance(binding.value, If):
        inner = (b for block in inner_blocks(binding.value) for b in bindings(block))
        return any(has_effect(b) and not is_fused(b.value, live.module) for b in inner)
    call = binding.value
    return (
        isinstance(call, Call) and base_op(call.callee) is None and not is_fused(call, live.module)
    )


def _written(binding: Binding, live: Liveness) -> set[Memory]:
    call = binding.value
    op = base_op(call.callee) if isinstance(call, Call) else None
    if op is None:
        return set()
    atoms = [a for slot in op.schema.written for a in flat_atoms(call.args[slot])]
    return {m for atom in atoms for m in live.memory(atom)}
