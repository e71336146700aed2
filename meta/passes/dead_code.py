"""Dead code elimination."""

from __future__ import annotations

from dataclasses import replace

from meta.dialect.core.ir_calls import has_effect
from meta.ir import Binding, Block, Expr, If, Module, Var, operands
from meta.ir.visit import nested_bindings
from meta.passes.call_graph import remove_unreachable
from meta.passes.rewrite import map_functions, with_inner_blocks


def dead_code(module: Module) -> Module:
    """Remove bindings whose variable is not used and whose value has no effect, and functions that
    main does not call.

    Calls that write an argument stay, and so do calls of functions, which may. In a module without
    main every function stays.

    >>> from meta.ir import parse
    >>> print(meta.passes.dead_code(parse('''
    ... func @main(%x: float32[2]) -> float32[2] {
    ...   %y: float32[2] = exp(%x)
    ...   %z: float32[2] = relu(%x)
    ...   return %z
    ... }''')))
    func @main(%x: float32[2]) -> float32[2] {
      %z: float32[2] = relu(%x)
      return %z
    }
    """
    live = map_functions(module, lambda f: replace(f, body=_block(f.body, set())))
    return remove_unreachable(live)


def _block(block: Block, used: set[Expr]) -> Block:
    """Return the live part; adds what it uses to ``used``."""
    used.update(operands(block.result))
    kept: list[Binding] = []
    for binding in reversed(block.bindings):
        value = binding.value
        nested = nested_bindings(value) if isinstance(value, If) else ()
        if binding.var not in used and not any(map(has_effect, (binding, *nested))):
            continue
        binding = with_inner_blocks(binding, lambda inner: _block(inner, used))
        used.update(a for a in operands(binding.value) if isinstance(a, Var))
        kept.append(binding)
    return Block(tuple(reversed(kept)), block.result)
