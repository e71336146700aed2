"""What a binding reads, and what it may write: for passes that move or repeat bindings."""

from __future__ import annotations

from meta.ir import Binding, Call, Expr, If, bindings, free_vars, operands
from meta.ir.visit import inner_blocks
from meta.passes.call_of import base_op, flat_atoms, has_effect
from meta.passes.lifetimes import Lifetimes, Memory, is_fused


def reads(binding: Binding) -> list[Expr]:
    """Return the atoms that a binding uses, its blocks included."""
    inner = [v for block in inner_blocks(binding.value) for v in free_vars(block)]
    return [*operands(binding.value), *inner]


def may_write_anything(binding: Binding, live: Lifetimes) -> bool:
    """Whether a binding is a call of a function, or an `If` with an effect."""
    if isinstance(binding.value, If):
        inner = (b for block in inner_blocks(binding.value) for b in bindings(block))
        return any(has_effect(b) and not is_fused(b.value, live.module) for b in inner)
    call = binding.value
    is_function = isinstance(call, Call) and base_op(call.callee) is None
    return is_function and not is_fused(call, live.module)


def written(binding: Binding, live: Lifetimes) -> set[Memory]:
    """Return what a call of an operator writes in place."""
    call = binding.value
    op = base_op(call.callee) if isinstance(call, Call) else None
    if op is None or not isinstance(call, Call):
        return set()
    atoms = [a for slot in op.schema.written for a in flat_atoms(call.args[slot])]
    return {m for atom in atoms for m in live.memory(atom)}
